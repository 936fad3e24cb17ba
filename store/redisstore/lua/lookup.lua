-- Lookup, and the records of a list; in front of it now.lua and record.lua.
--
-- KEYS[1]  the record
-- ARGV     2 "1" for payload and answers too
-- Reply    see answer; the code is 0
-- Cost     TIME, two HMGET
return answer(0, load(), ARGV[2] == '1')
