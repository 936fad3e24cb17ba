-- Take where all charges are of token buckets; after now.lua and judge.lua, and
-- in front of charge.lua: Q1 to Q5.
--
-- KEYS, ARGV, reply: those of take.lua, without ARGV[2]: the charges follow at
-- once
-- Cost     TIME; for each charge GET, and SETRANGE or SET where all pass
if slow then
	return struct.pack('<Bi8', 2, now)
elseif refused then
	return struct.pack('<Bi8', 0, now) .. table.concat(found, '', 1, n)
end
local last, out = n, struct.pack('<Bi8', 1, now) .. table.concat(found, '', 1, n)
