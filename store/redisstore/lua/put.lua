-- PutIf of a setting.
--
-- KEYS[1]  the setting: a hash of v, the value, and n, its version
-- ARGV     1 not used, 2 the version that it must have, 0 for none, 3 value
-- Reply    1, or 0 if it has another version
-- Cost     HGET, HSET
local have = tonumber(redis.call('HGET', KEYS[1], 'n') or 0)
if have ~= tonumber(ARGV[2]) then
	return 0
end
redis.call('HSET', KEYS[1], 'n', have + 1, 'v', ARGV[3])
return 1
