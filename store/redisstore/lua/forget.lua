-- Forget; in front of it now.lua and record.lua: F9.
--
-- KEYS[1]  the record
-- ARGV     2 the revision that was seen
-- Reply    1; 0 not found; 2 changed since; 3 may be running
-- Cost     TIME, HMGET, DEL, HSET, PEXPIRE
local r = load()
current(r)
if r.state == FREE then
	return 0
elseif r.revision ~= tonumber(ARGV[2]) then
	return 2
elseif r.state == HELD and now < r.lease_end + r.quiet then
	return 3
end
local owner = r.owner
freed(r)
if owner == NOBODY then
	written(r)
else
	with_mark(r, owner)
end
save(r)
return 1
