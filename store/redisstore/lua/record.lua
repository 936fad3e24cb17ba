-- Stands in front of every script about a record, after now.lua: how a record
-- is kept, and the parts of the rule that the scripts share. The rule itself
-- is that of package idempotency, whose functions have the same names.
--
-- A record is a hash:
--   h       the head: all its numbers, packed (HEAD)
--   c       tenant and origin, as the client packed them; not looked at here
--   f       fingerprints: of each the length of its tag (I4), tag, 32 bytes
--   m       marks: of each 16 bytes of owner, and its end (i8)
--   p       the payload
--   s1, …   steps: done (B), started, ended (i8), the length of the answer
--           (I4), then name, provider's key and id, each behind its length (I4)
--   a1, …   their answers, where there are any
-- Times are microseconds since 1970; 0 is none.
local HEAD = '<BBBBBBBBBBi8i8i8i8i8i8i8i8i8i8i8i8i8i8i8i8i8c16c16'
local FREE, HELD, ENDED, SHRUNK = 0, 1, 2, 3
local FOUND_FREE, FOUND_UNKNOWN, FOUND_RETRYABLE = 0, 1, 2
local FAILED_FINAL, FAILED_RETRYABLE = 2, 3
local HOLD, RETRY, FAIL = 0, 1, 3
local NOBODY = string.rep('\0', 16)
local MARK_TIME = 60000000
local KEY = KEYS[1]

local function load()
	local got = redis.call('HMGET', KEY, 'h', 'm', 'f')
	local r = {
		stored = got[1], state = FREE, terms = HOLD, found = 0, takeover = 0, class = 0, by = 0, notkept = 0,
		found_steps = 0, nsteps = 0, nopen = 0, status = 0, attempt = 0, token = 0, revision = 0,
		created = 0, updated = 0, lease_end = 0, found_lease = 0, window = 0, window_end = 0, expires = 0,
		lease = 0, retention = 0, remember = 0, quiet = 0, plen = 0, alen = 0,
		owner = NOBODY, released = NOBODY, marks = got[2] or '', prints = got[3] or '',
		set = {}, wipe = false,
	}
	if got[1] then
		r.state, r.terms, r.found, r.takeover, r.class, r.by, r.notkept, r.found_steps, r.nsteps, r.nopen,
		r.status, r.attempt, r.token, r.revision, r.created, r.updated, r.lease_end, r.found_lease,
		r.window, r.window_end, r.expires, r.lease, r.retention, r.remember, r.quiet, r.plen, r.alen,
		r.owner, r.released = struct.unpack(HEAD, got[1])
	end
	return r
end

-- expiry is Record.Expiry; nil is never.
local function expiry(r)
	if r.state == HELD then
		if r.terms == RETRY then
			return r.lease_end + math.max(r.retention, r.quiet)
		end
		return nil
	end
	return r.expires
end

-- freed: only marks, revision and the first and last times stay.
local function freed(r)
	r.wipe = r.stored
	r.state, r.terms, r.found, r.takeover, r.class, r.by, r.notkept = FREE, HOLD, 0, 0, 0, 0, 0
	r.found_steps, r.nsteps, r.nopen, r.status, r.attempt, r.token = 0, 0, 0, 0, 0, 0
	r.lease_end, r.found_lease, r.window, r.window_end, r.expires = 0, 0, 0, 0, 0
	r.lease, r.retention, r.remember, r.quiet, r.plen, r.alen = 0, 0, 0, 0, 0, 0
	r.owner, r.released, r.prints = NOBODY, NOBODY, ''
end

local function current(r)
	if r.state == ENDED and now >= r.expires and r.remember > 0 and r.class ~= FAILED_RETRYABLE then
		r.state, r.expires = SHRUNK, r.expires + r.remember
		r.bare = r.nsteps -- its payload and steps go when it is written
		r.plen, r.alen, r.nsteps, r.nopen = 0, 0, 0, 0
	end
	if r.state ~= FREE then
		local t = expiry(r)
		if t and now >= t then
			freed(r)
		end
	end
end

local function written(r)
	r.revision, r.updated = math.max(r.revision + 1, now), now
	if r.created == 0 then
		r.created = now
	end
	if r.marks ~= '' then
		local live = ''
		for i = 1, #r.marks, 24 do
			if now < struct.unpack('<i8', r.marks, i + 16) then
				live = live .. string.sub(r.marks, i, i + 23)
			end
		end
		if live ~= r.marks then
			r.marks, r.remark = live, true
		end
	end
end

local function with_mark(r, owner)
	local others = ''
	for i = 1, #r.marks, 24 do
		if string.sub(r.marks, i, i + 15) ~= owner then
			others = others .. string.sub(r.marks, i, i + 23)
		end
	end
	r.marks, r.remark = others .. owner .. struct.pack('<i8', now + MARK_TIME), true
	written(r)
end

local function marked(r, owner)
	for i = 1, #r.marks, 24 do
		if string.sub(r.marks, i, i + 15) == owner and now < struct.unpack('<i8', r.marks, i + 16) then
			return true
		end
	end
	return false
end

local function without_result(r)
	if r.plen > 0 then
		r.nopayload = true
	end
	r.class, r.by, r.notkept, r.status, r.window, r.plen = 0, 0, 0, 0, 0, 0
end

-- ended: the result's fields are already in r.
local function ended(r)
	r.state, r.window_end = ENDED, 0
	if r.class == FAILED_RETRYABLE then
		r.window_end = now + r.window
	end
	r.expires = now + math.max(r.retention, r.window)
	r.found, r.found_lease, r.found_steps = FOUND_FREE, 0, 0
	written(r)
end

local function not_run(r)
	local open = r.nsteps > r.found_steps or r.nopen > 0
	local owner = r.owner
	if open then -- and its quiet time runs from here (R11), whatever was found
		r.lease_end = math.min(r.lease_end, now)
		without_result(r)
	elseif r.found == FOUND_UNKNOWN then
		r.lease_end = r.found_lease
	elseif r.found == FOUND_RETRYABLE then
		ended(r)
		r.window_end = now
		r.owner, r.released = NOBODY, owner
		return
	else
		freed(r)
		written(r)
		return
	end
	r.owner, r.released = NOBODY, owner
	written(r)
end

-- owned is the fence, F1.
local function owned(r, owner, token)
	return owner ~= NOBODY and r.owner == owner and r.token == token
end

-- save writes what changed, and how long the key is to live. Cost: one HSET;
-- DEL or HDEL where something goes; PEXPIRE or PERSIST.
local function save(r)
	if r.wipe then
		redis.call('DEL', KEY)
	elseif r.bare then
		local gone = { 'p' }
		for i = 1, r.bare do
			gone[#gone + 1] = 's' .. i
			gone[#gone + 1] = 'a' .. i
		end
		redis.call('HDEL', KEY, unpack(gone))
	elseif r.nopayload then
		redis.call('HDEL', KEY, 'p')
	end
	if r.state == FREE and r.marks == '' then
		redis.call('DEL', KEY)
		return
	end
	local h = struct.pack(HEAD, r.state, r.terms, r.found, r.takeover, r.class, r.by, r.notkept, r.found_steps, r.nsteps, r.nopen,
		r.status, r.attempt, r.token, r.revision, r.created, r.updated, r.lease_end, r.found_lease,
		r.window, r.window_end, r.expires, r.lease, r.retention, r.remember, r.quiet, r.plen, r.alen,
		r.owner, r.released)
	local set = r.set
	set[#set + 1], set[#set + 2] = 'h', h
	if r.marks == '' then
		if r.remark and not r.wipe then
			redis.call('HDEL', KEY, 'm')
		end
	elseif r.remark or r.wipe then
		set[#set + 1], set[#set + 2] = 'm', r.marks
	end
	redis.call('HSET', KEY, unpack(set))
	local keep = expiry(r)
	if keep then
		for i = 17, #r.marks, 24 do
			keep = math.max(keep, struct.unpack('<i8', r.marks, i))
		end
		if r.state == ENDED and r.remember > 0 and r.class ~= FAILED_RETRYABLE then
			keep = keep + r.remember
		end
		redis.call('PEXPIRE', KEY, math.max(0, math.ceil((keep - now) / 1000)) + slack)
	elseif r.stored and not r.wipe then
		redis.call('PERSIST', KEY)
	end
	r.head = h
end

-- answer is the reply about a record as it is stored, behind the given code:
-- code, now, h, c, f, m, payload, s1, …, a1, …. Payload and answers are left
-- out if they are over 64 KiB together, and where full is false.
local function answer(code, r, full)
	local names = { 'h', 'c', 'f', 'm', 'p' }
	local h = r.head or r.stored
	if not h then
		return { code, now, false }
	end
	local n, plen, alen = string.byte(h, 9), struct.unpack('<i8i8', h, 131)
	full = full and plen + alen <= 65536
	if not full then
		names[5] = '-'
	end
	for i = 1, n do
		names[#names + 1] = 's' .. i
	end
	if full and alen > 0 then
		for i = 1, n do
			names[#names + 1] = 'a' .. i
		end
	end
	local got = redis.call('HMGET', KEY, unpack(names))
	table.insert(got, 1, now)
	table.insert(got, 1, code)
	return got
end
