-- The usual claims, in straight lines: of a key that is free and was never
-- used, and of one that is done and whose answer is asked again. After now.lua
-- and judge.lua, in front of charge.lua; what is not usual goes on in record.lua,
-- reserve.lua, limits.lua and admit.lua, which are the whole rule. See admit.lua
-- for KEYS, ARGV and the reply, and record.lua for the form of a record.
--
-- Cost     a free key: TIME, HMGET, HSET, PEXPIRE where the terms say retry.
--          A replay: TIME, two HMGET. With them what judge.lua and charge.lua
--          say.
local requests = tonumber(ARGV[6])
local last, out = 0, nil
if not slow and refused and refused <= requests then
	return { struct.pack('<BI4i8', 0, requests, now) .. table.concat(found, '', 1, requests) }
elseif not slow then
	local owner, terms, prints = ARGV[2], ARGV[3], ARGV[4]
	local got = redis.call('HMGET', KEYS[1], 'h', 'm', 'f')
	local h, print = got[1], got[3] or ''
	if not h and refused then
		last, out = requests, { struct.pack('<BI4i8', 3, n, now) .. table.concat(found, '', 1, n) }
	elseif not h then
		local ZERO = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'
		local lease, retention, _, quiet, policy = struct.unpack('<i8i8i8i8B', terms)
		-- held; policy; eight zeros; status, attempt, token, revision, created,
		-- updated, the lease's end; four zeros; the terms; payload, answers; owner,
		-- released
		h = '\1' .. string.sub(terms, 33) .. struct.pack('<i8i8i8i8i8i8i8i8', 0, 0, 1, 1, now > 1 and now or 1, now, now, now + lease)
			.. ZERO .. ZERO .. string.sub(terms, 1, 32) .. ZERO .. owner .. ZERO
		if prints == '' then
			redis.call('HSET', KEYS[1], 'h', h, 'c', ARGV[5])
		else
			redis.call('HSET', KEYS[1], 'h', h, 'c', ARGV[5], 'f', prints)
		end
		if policy == 1 then -- retry
			redis.call('PEXPIRE', KEYS[1], math.ceil((lease + math.max(retention, quiet)) / 1000) + slack)
		end
		last, out = n, { struct.pack('<BI4i8', 1, n, now) .. table.concat(found, '', 1, n), 65, now, h, '' } -- started, fresh
	elseif (got[2] or '') == '' and (print == prints or print == '' or prints == '') then
		local state, _, _, _, class, _, _, _, steps = string.byte(h, 1, 9)
		if state == 2 and class ~= 3 and steps == 0 -- ended, for good, without steps
			and now < struct.unpack('<i8', h, 91) and struct.unpack('<i8', h, 131) <= 65536 then
			local rest = redis.call('HMGET', KEYS[1], 'c', 'p')
			last, out = requests, {
				struct.pack('<BI4i8', 1, requests, now) .. table.concat(found, '', 1, requests), 2, now, h, rest[1], print, '', rest[2],
			}
		end
	end
end
