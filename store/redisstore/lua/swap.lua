-- Writes states of limits that the client has worked out, if none has changed
-- since it read them; in front of it now.lua.
--
-- KEYS     the limits
-- ARGV     of each key three, from 2: what was read, "" for nothing; what to
--          write, "" for nothing, "-" to delete the key; how long it is used,
--          in microseconds
-- Reply    1, or 0 if something had changed: nothing was written
-- Cost     MGET, and SET of what is written
for i, v in ipairs(redis.call('MGET', unpack(KEYS))) do
	if (v or '') ~= ARGV[3 * i - 1] then
		return 0
	end
end
for i, k in ipairs(KEYS) do
	if ARGV[3 * i] == '-' then
		redis.call('DEL', k)
	elseif ARGV[3 * i] ~= '' then
		redis.call('SET', k, ARGV[3 * i], 'PX', math.ceil(ARGV[3 * i + 1] / 1000) + slack)
	end
end
return 1
