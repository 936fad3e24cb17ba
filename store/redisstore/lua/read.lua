-- Reads the states of limits as they are; in front of it now.lua.
--
-- KEYS     the limits
-- Reply    now, and each string, nil if there is none
-- Cost     TIME, MGET; a log has up to 80 KB
local got = redis.call('MGET', unpack(KEYS))
table.insert(got, 1, now)
return got
