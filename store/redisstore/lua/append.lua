-- Append to the audit log; in front of it now.lua.
--
-- KEYS[1]  the log: a list; an entry's number is its place in it, from 1
-- ARGV     2 the entry, packed by the client
-- Reply    the entry's number
-- Cost     TIME, RPUSH
return redis.call('RPUSH', KEYS[1], struct.pack('<i8', now) .. ARGV[2])
