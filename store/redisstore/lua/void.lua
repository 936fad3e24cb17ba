-- Void; in front of it now.lua and record.lua: R10, R12.
--
-- KEYS[1]  the record
-- ARGV     2 owner
-- Reply    1
-- Cost     TIME, HMGET, HSET, PEXPIRE or PERSIST
local owner = ARGV[2]
local r = load()
current(r)
if r.state == HELD and r.owner == owner then
	not_run(r)
end
with_mark(r, owner)
save(r)
return 1
