-- Stands in front of the scripts that charge, after now.lua: how the state of a
-- limit is kept, and the algorithms for the case that almost always holds.
-- They are those of package ratelimit.
--
-- A token bucket is a string: 'B', then (i8) arrival, rem, since, returned,
-- quota, the whole and the rest of the time in which the burst comes back
-- (burst_us, burst_rem), window, burst. A log is a string: 'L', then (i8)
-- arrival, window, quota, since, returned, head; then its entries (i8).
--
-- A state that another rule wrote, or that is ahead of a clock that stepped
-- back, needs products of 128 bits: the scripts answer SLOW, and the client
-- does it by package ratelimit (see swap.lua).
--
-- A charge is packed (i8): the cost's increment (us, rem; us is 2^53 if it can
-- never pass), then the end of the state that the rule writes: quota, burst_us,
-- burst_rem, window, burst. Of a log, and where the cost is 0, the cost (i8) and
-- the algorithm (B) follow.
--
-- Defines  judge(first, n, key), which looks at the charges ARGV[first …
--          first+n-1] of KEYS[key …], each of its own key. Returns what they
--          come to, the states that were found, and what to write.
--          settle(n, key, todo), which writes it.
-- Cost     of each charge: a bucket GET, and SET where it is charged; a log
--          GETRANGE, STRLEN, up to 14 GETRANGE, and APPEND, SETRANGE, PEXPIRE
--          where it is charged; now and then it is written anew, without the
--          entries that are over, at most 80 KB.
local CHARGE = '<i8i8i8i8i8i8i8'
local BUCKET, BUCKET_SIZE = '<Bi8i8i8i8i8i8i8i8i8', 73
local LOG, LOG_SIZE = '<Bi8i8i8i8i8i8', 49
local REFUSED_ALL, ALLOWED_ALL, SLOW = 0, 1, 2
local B, L = 66, 76

local function lifetime(us)
	return math.ceil(us / 1000) + slack
end

-- bucket returns whether the cost passes, and what to write then; nil if slow.
local function bucket(s, quota, window, cost, us, rem, full_us, full_rem, capacity)
	local debt_us, debt_rem, since, returned = 0, 0, now, 0
	if s then
		if #s ~= BUCKET_SIZE then
			return nil
		end
		local kind, arrival, r, si, ret, q, most_us, most_rem, w = struct.unpack(BUCKET, s)
		if kind ~= B or w ~= window or q ~= quota then
			return nil
		end
		since, returned = si, ret
		if arrival >= now then
			debt_us, debt_rem = arrival - now, r
			if debt_us > most_us or debt_us == most_us and debt_rem > most_rem then
				return nil
			end
		end
	end
	if cost == 0 then
		return true
	end
	us, rem = debt_us + us, debt_rem + rem
	if rem >= quota then
		us, rem = us + 1, rem - quota
	end
	if us > full_us or us == full_us and rem > full_rem then
		return false
	end
	return true, struct.pack(BUCKET, B, now + us, rem, since, returned, quota, full_us, full_rem, window, capacity), lifetime(us + 1)
end

local function entry(k, i)
	return (struct.unpack('<i8', redis.call('GETRANGE', k, LOG_SIZE + 8 * i, LOG_SIZE + 8 * i + 7)))
end

-- log returns whether the cost passes, what the client needs to know, and what
-- to write; nil if slow. To know: owed, the entry that must leave, the last
-- entry, since, returned.
local function log(k, quota, window, cost)
	local h = redis.call('GETRANGE', k, 0, LOG_SIZE - 1)
	local n, head, since, returned, last, live, retry = 0, 0, now, 0, 0, 0, 0
	if h ~= '' then
		local kind, arrival, w, q, si, ret, hd = struct.unpack(LOG, h)
		if kind ~= L or w ~= window or q ~= quota or arrival > now then
			return nil
		end
		n, head, since, returned = (redis.call('STRLEN', k) - LOG_SIZE) / 8, hd, si, ret
		local cut = now - window
		local lo, hi = head, n -- the first entry after cut is in [lo, hi]
		if n > head then
			last = entry(k, n - 1)
			if last <= cut then
				lo = n
			elseif entry(k, head) > cut then
				hi = head
			end
			while lo < hi do
				local mid = math.floor((lo + hi) / 2)
				if entry(k, mid) > cut then
					hi = mid
				else
					lo = mid + 1
				end
			end
			live = n - lo
		end
	end
	local passes = live + cost <= quota
	if not passes and cost <= quota then
		retry = entry(k, n - live + live + cost - quota - 1)
	end
	local seen = struct.pack('<Bi8i8i8i8i8', L, live, retry, last, since, returned)
	if cost == 0 then
		return true, seen
	elseif not passes then
		return false, seen
	end
	return true, seen, { n = n, live = live, head = head, since = since, returned = returned, cost = cost, quota = quota, window = window }
end

-- append writes to a log.
local function append(k, a)
	local fresh = string.rep(struct.pack('<i8', now), a.cost)
	local head, keep = a.head, math.max(a.live, a.quota - a.cost)
	if a.n - head > keep then
		head = a.n - keep
	end
	local ms = lifetime(a.window)
	if a.n == 0 or head > 0 and head * 5 >= a.n then
		local rest = a.n > head and redis.call('GETRANGE', k, LOG_SIZE + 8 * head, -1) or ''
		local h = struct.pack(LOG, L, now, a.window, a.quota, a.since, a.returned, 0)
		redis.call('SET', k, h .. rest .. fresh, 'PX', ms)
		return
	end
	redis.call('APPEND', k, fresh)
	redis.call('SETRANGE', k, 0, struct.pack(LOG, L, now, a.window, a.quota, a.since, a.returned, head))
	redis.call('PEXPIRE', k, ms)
end

local function judge(first, n, key)
	local all, found, todo = ALLOWED_ALL, {}, {}
	for i = 0, n - 1 do
		local k = KEYS[key + i]
		local us, rem, quota, full_us, full_rem, window, capacity = struct.unpack(CHARGE, ARGV[first + i])
		local cost, alg = 1, 0
		if #ARGV[first + i] > 56 then
			cost, alg = struct.unpack('<i8B', ARGV[first + i], 57)
		end
		local ok, value, ms, seen
		if alg == 0 then
			seen = redis.call('GET', k)
			ok, value, ms = bucket(seen, quota, window, cost, us, rem, full_us, full_rem, capacity)
		else
			ok, seen, value = log(k, quota, window, cost)
		end
		if ok == nil then
			return SLOW
		elseif not ok then
			all = REFUSED_ALL
		end
		found[i + 1] = seen or '-'
		todo[2 * i + 1], todo[2 * i + 2] = value or false, ms
	end
	return all, found, todo
end

local function settle(n, key, todo)
	for i = 0, n - 1 do
		local value, ms = todo[2 * i + 1], todo[2 * i + 2]
		if ms then
			redis.call('SET', KEYS[key + i], value, 'PX', ms)
		elseif value then
			append(KEYS[key + i], value)
		end
	end
end
