-- Judges token buckets in straight lines; after now.lua and a line that defines
-- n, how many charges there are, key and arg: the i-th is that of KEYS[key + i],
-- and packed in ARGV[arg + i] (see limits.lua). Each run of a script makes its
-- functions anew, and that takes longer than what they do: so this has none.
--
-- Defines  slow     whether limits.lua or the client has to do it: a charge that
--                   is not of a bucket or is 0, or a state that is not the one
--                   that this very rule writes, or is ahead of the clock
--          refused  the first charge that does not pass; nil if all do
--          found    the states, '-' for none; from 1 to n
--          times, rests, keep: for settle.lua
-- Cost     for each charge GET
local MINUTE = 60000000
local slow, refused = false, nil
-- Of four, so that they need not grow one by one.
local found, times, rests, keep = { '', '', '', '' }, { 0, 0, 0, 0 }, { 0, 0, 0, 0 }, { 0, 0, 0, 0 }
for i = 1, n do
	local charge = ARGV[arg + i]
	local us, rem, quota, full_us, full_rem = struct.unpack('<i8i8i8i8i8', charge)
	local s = redis.call('GET', KEYS[key + i])
	local minute
	if #charge ~= 56 or s and string.sub(s, 34) ~= string.sub(charge, 17) then
		slow = true
		break
	elseif s then
		local arrival, r = struct.unpack('<i8i8', s, 2)
		local debt = arrival - now
		if debt >= 0 then
			if debt > full_us or debt == full_us and r > full_rem then
				slow = true
				break
			end
			us, rem = us + debt, rem + r
			if rem >= quota then
				us, rem = us + 1, rem - quota
			end
		end
		minute = arrival - arrival % MINUTE
	end
	if us > full_us or us == full_us and rem > full_rem then
		refused = refused or i
	end
	local t = now + us
	found[i], times[i], rests[i], keep[i] = s or '-', t, rem, minute == t - t % MINUTE
end
