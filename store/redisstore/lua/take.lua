-- Take, of charges of any kind; in front of it now.lua and limits.lua: Q1 to
-- Q5. Where all are of token buckets and charge for real, see bucket.lua and
-- buckets.lua.
--
-- KEYS     one for each charge, all different
-- ARGV     2 "1" to charge, "" only to look; 3, … charges (see limits.lua)
-- Reply    a string: code (B: 0 refused, 1 allowed, 2 slow: nothing was done),
--          now (i8), and the state that each charge found: '-' for none, of a
--          bucket its string, of a log see log
local n = #KEYS
local all, found, todo = judge(3, n, 1)
if all == SLOW then
	return struct.pack('<Bi8', SLOW, now)
end
if all == ALLOWED_ALL and ARGV[2] == '1' then
	settle(n, 1, todo)
end
return struct.pack('<Bi8', all, now) .. table.concat(found)
