-- Settle; in front of it now.lua and record.lua: F9.
--
-- KEYS[1]  the record
-- ARGV     2 the revision that was seen, 3 the result (see end.lua), 4 payload
-- Reply    1; 0 not found; 2 changed since, or has a result; 3 may be running
-- Cost     TIME, HMGET, HSET, PEXPIRE or PERSIST
local r = load()
current(r)
if r.state == FREE then
	return 0
elseif r.revision ~= tonumber(ARGV[2]) or r.state ~= HELD then
	return 2
elseif now < r.lease_end + r.quiet then
	return 3
end
without_result(r)
r.class, r.by, r.notkept, r.status, r.window = struct.unpack('<BBBi8i8', ARGV[3])
r.by, r.plen = 2, #ARGV[4]
if r.plen > 0 then
	r.set = { 'p', ARGV[4] }
end
ended(r)
r.owner, r.token = NOBODY, r.token + 1
save(r)
return 1
