-- SaveStep; in front of it now.lua and record.lua.
--
-- KEYS[1]  the record
-- ARGV     2 owner, 3 token, 4 "1" if the step is done, 5 name, 6 provider's
--          key, 7 provider's id, 8 answer
-- Reply    1; 3 if it had been saved before and nothing was written; 0 if
--          fenced; 2 if the step contradicts the record, or is one too many
-- Cost     TIME, HMGET, an HMGET of the steps (not of their answers), HSET,
--          PEXPIRE or PERSIST
local MAX_STEPS = 64
local done, name, pkey, pid, ans = ARGV[4] == '1', ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local r = load()
current(r)
if r.state ~= HELD or not owned(r, ARGV[2], tonumber(ARGV[3])) then
	return 0
end
local names = {}
for i = 1, r.nsteps do
	names[i] = 's' .. i
end
local at, started, old_len, was_open = r.nsteps + 1, now, 0, false
local olds = r.nsteps > 0 and redis.call('HMGET', KEY, unpack(names)) or {}
for i, s in ipairs(olds) do
	local odone, ostarted, _, alen, n, next = struct.unpack('<Bi8i8I4I4', s)
	local oname = string.sub(s, next, next + n - 1)
	if oname == name then
		next = next + n
		n = struct.unpack('<I4', s, next)
		local okey = string.sub(s, next + 4, next + 3 + n)
		next = next + 4 + n
		n = struct.unpack('<I4', s, next)
		local oid = string.sub(s, next + 4, next + 3 + n)
		if done and pkey == '' then
			pkey = okey
		end
		if (odone == 1) == done and okey == pkey and oid == pid and alen == #ans
			and (alen == 0 or redis.call('HGET', KEY, 'a' .. i) == ans) then
			return 3
		elseif odone == 1 or okey ~= pkey then
			return 2
		end
		at, started, old_len, was_open = i, ostarted, alen, true
	end
end
if at > MAX_STEPS then
	return 2
end
if at > r.nsteps then
	r.nsteps = at
end
r.nopen = r.nopen - (was_open and 1 or 0) + (done and 0 or 1)
r.alen = r.alen - old_len + #ans
r.set = {
	's' .. at, struct.pack('<Bi8i8I4', done and 1 or 0, started, done and now or 0, #ans)
		.. struct.pack('<I4', #name) .. name .. struct.pack('<I4', #pkey) .. pkey .. struct.pack('<I4', #pid) .. pid,
}
if ans ~= '' then
	r.set[3], r.set[4] = 'a' .. at, ans
end
written(r)
save(r)
return 1
