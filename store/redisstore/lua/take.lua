-- Take; in front of it now.lua and limits.lua: Q1 to Q5.
--
-- KEYS     one for each charge, all different
-- ARGV     2 "1" to charge, "" only to look; 3, … charges
-- Reply    code (0 refused, 1 allowed, 2 slow: nothing was done), now, and the
--          state that each charge found: of a bucket its string, nil if there
--          was none; of a log see log
local n = #KEYS
local all, found, todo = judge(3, n, 1)
if all == SLOW then
	return { SLOW, now }
end
if all == ALLOWED_ALL and ARGV[2] == '1' then
	settle(n, 1, todo)
end
table.insert(found, 1, now)
table.insert(found, 1, all)
return found
