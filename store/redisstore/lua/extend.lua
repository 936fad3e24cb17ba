-- Extend; in front of it now.lua and record.lua: F1, F3.
--
-- KEYS[1]  the record
-- ARGV     2 owner, 3 token, 4 lease in microseconds
-- Reply    the end of the lease, in microseconds; 0 if fenced
-- Cost     TIME, HMGET, HSET, PEXPIRE or PERSIST
local r = load()
current(r)
if r.state ~= HELD or not owned(r, ARGV[2], tonumber(ARGV[3])) then
	return 0
end
local t = now + tonumber(ARGV[4])
if t > r.lease_end then
	r.lease_end = t
	written(r)
	save(r)
end
return r.lease_end
