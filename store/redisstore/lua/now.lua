-- Stands in front of every script that needs the time.
--
-- ARGV[1]  "" for the server's clock; in tests the time, in microseconds since
--          1970, in decimal.
-- Defines  now    the time in microseconds
--          slack  how long a key outlives its use, in milliseconds: a physical
--                 lifetime only collects rubbish, later (E2). A clock that is
--                 given as an argument may stand still or go back, so there it
--                 is long.
-- Cost     one TIME.
--
-- All numbers in these scripts are integers below 2^53 in magnitude.
local now, slack
if ARGV[1] == '' then
	local t = redis.call('TIME')
	now, slack = t[1] * 1000000 + t[2], 120000
else
	now, slack = tonumber(ARGV[1]), 3600000
end
