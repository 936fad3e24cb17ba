-- Take from one token bucket: what buckets.lua does, for its only key. In front
-- of it now.lua: Q1 to Q5. See judge.lua and charge.lua, whose rule this is.
--
-- KEYS, ARGV, reply: those of buckets.lua
-- Cost     TIME, GET, and SETRANGE or SET where it passes
local MINUTE = 60000000
local us, rem, quota, full_us, full_rem = struct.unpack('<i8i8i8i8i8', ARGV[2])
local s = redis.call('GET', KEYS[1])
if not s then
	if us > full_us or us == full_us and rem > full_rem then
		return struct.pack('<Bi8', 0, now) .. '-'
	end
	redis.call('SET', KEYS[1], struct.pack('<Bi8i8i8i8', 66, now + us, rem, now, 0) .. string.sub(ARGV[2], 17),
		'PX', math.ceil((us + 1) / 1000) + slack)
	return struct.pack('<Bi8', 1, now) .. '-'
elseif string.sub(s, 34) ~= string.sub(ARGV[2], 17) then
	return struct.pack('<Bi8', 2, now)
end
local arrival, r = struct.unpack('<i8i8', s, 2)
local debt = arrival - now
if debt >= 0 then
	if debt > full_us or debt == full_us and r > full_rem then
		return struct.pack('<Bi8', 2, now)
	end
	us, rem = us + debt, rem + r
	if rem >= quota then
		us, rem = us + 1, rem - quota
	end
end
if us > full_us or us == full_us and rem > full_rem then
	return struct.pack('<Bi8', 0, now) .. s
end
local t = now + us
if t - t % MINUTE == arrival - arrival % MINUTE then
	redis.call('SETRANGE', KEYS[1], '1', struct.pack('<i8i8', t, rem))
else
	redis.call('SET', KEYS[1], struct.pack('<Bi8i8', 66, t, rem) .. string.sub(s, 18),
		'PX', math.ceil((us + 1) / 1000) + slack)
end
return struct.pack('<Bi8', 1, now) .. s
