-- Reserve alone; in front of it now.lua, record.lua and reserve.lua.
--
-- KEYS[1]  the record
-- ARGV     2 owner, 3 terms, 4 fingerprints, 5 tenant and origin
-- Reply    see reply and answer
return reply(decide(ARGV[2], ARGV[3], ARGV[4], ARGV[5]))
