-- Sweep of one record; in front of it now.lua and record.lua: E1.
--
-- KEYS[1]  the record
-- Reply    1 if it was removed or shrunk, else 0
-- Cost     TIME, HMGET; DEL, or HDEL, HSET and PEXPIRE where there is work
local r = load()
if not r.stored then
	return 0
end
local keep = expiry(r)
if not keep then
	return 0
end
for i = 17, #r.marks, 24 do
	keep = math.max(keep, struct.unpack('<i8', r.marks, i))
end
if now < keep then
	return 0
end
current(r)
if r.state == FREE then
	redis.call('DEL', KEY)
else
	written(r)
	save(r)
end
return 1
