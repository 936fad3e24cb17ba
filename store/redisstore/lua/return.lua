-- Return of a charge to a token bucket; in front of it now.lua. See
-- ratelimit.Rule.Return for why it gives no more than this.
--
-- KEYS[1]  the bucket
-- ARGV     2 window, quota, the cost's increment (us, rem), and of the receipt
--          arrival, rem, since, returned (i8 each)
-- Reply    1 if something was given back, else 0
-- Cost     TIME, GET, SET
local s = redis.call('GET', KEYS[1])
if not s or #s ~= 73 then
	return 0
end
local kind, arrival, rem, since, returned, quota, most_us, most_rem, window, burst = struct.unpack('<Bi8i8i8i8i8i8i8i8i8', s)
local w, q, us, part, was, was_rem, was_since, was_returned = struct.unpack('<i8i8i8i8i8i8i8i8', ARGV[2])
if kind ~= 66 or w ~= window or q ~= quota or since ~= was_since then
	return 0
end
local debt = arrival - now
if debt > most_us or debt == most_us and rem > most_rem then
	return 0
end
local left, left_rem = was - (returned - was_returned) - now, was_rem
if left < 0 then
	return 0
end
if left < us or left == us and left_rem < part then
	us, part = left, left_rem
end
if us == 0 and part == 0 then
	return 0
end
arrival, rem = arrival - us, rem - part
if rem < 0 then
	arrival, rem = arrival - 1, rem + quota
end
returned = returned + us + (part > 0 and 1 or 0)
redis.call('SET', KEYS[1], struct.pack('<Bi8i8i8i8i8i8i8i8i8', 66, arrival, rem, since, returned, quota, most_us, most_rem, window, burst),
	'PX', math.max(0, math.ceil((arrival + 1 - now) / 1000)) + slack)
return 1
