-- Charges the first so many (last) of the buckets that judge.lua judged, and
-- returns what the script replies, if that is known.
--
-- A key lives for its slack longer than until its arrival. While its arrival
-- stays within one minute, at least half of the slack is left, and only the two
-- numbers that change are written.
--
-- Cost     for each charge SETRANGE or SET
for i = 1, last do
	local k, s, t = KEYS[key + i], found[i], times[i]
	if keep[i] then
		redis.call('SETRANGE', k, '1', struct.pack('<i8i8', t, rests[i]))
	elseif s ~= '-' then
		redis.call('SET', k, struct.pack('<Bi8i8', 66, t, rests[i]) .. string.sub(s, 18),
			'PX', math.ceil((t + 1 - now) / 1000) + slack)
	else
		redis.call('SET', k, struct.pack('<Bi8i8i8i8', 66, t, rests[i], now, 0) .. string.sub(ARGV[arg + i], 17),
			'PX', math.ceil((t + 1 - now) / 1000) + slack)
	end
end
if out then
	return out
end
