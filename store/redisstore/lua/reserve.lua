-- What a claim comes to; after now.lua and record.lua, in front of admit.lua: R1
-- to R8, R12. The usual cases are in usual.lua too.
--
-- Cost     a free key: TIME, HMGET, HSET, PEXPIRE where the terms say retry.
--          A replay: TIME, two HMGET.
-- Defines  decide(owner, terms, prints, client), which returns an outcome's
--          code, the record, and whether to write it. The terms are packed:
--          lease, retention, remember, quiet (i8), policy (B).
--          Code: the outcome's number; + 16 if the owner held the key already
--          (R3), + 32 if no fingerprint could be compared, + 64 if the key was
--          free and the record is what the claim says.
local REFUSED, STARTED, REPLAYED, IN_PROGRESS, MISMATCHED, UNKNOWN, ARCHIVED = 0, 1, 2, 3, 4, 5, 6
local AGAIN, NOT_COMPARABLE, FRESH = 16, 32, 64

local function each_print(list, f)
	local i = 1
	while i <= #list do
		local n = struct.unpack('<I4', list, i)
		f(string.sub(list, i + 4, i + 3 + n), string.sub(list, i + 4 + n, i + 35 + n))
		i = i + 36 + n
	end
end

-- compare returns whether no fingerprint of an equal tag differs, and whether
-- there was anything to compare (R2).
local function compare(old, fresh)
	if old == fresh or old == '' or fresh == '' then
		return true, true
	end
	local sums, equal, comparable = {}, true, false
	each_print(old, function(tag, sum) sums[tag] = sum end)
	each_print(fresh, function(tag, sum)
		if sums[tag] then
			comparable = true
			equal = equal and sums[tag] == sum
		end
	end)
	return equal, comparable or not equal
end

-- merge returns the fresh fingerprints, and those old ones whose tags are not
-- among them (R2).
local function merge(old, fresh)
	if old == '' or old == fresh then
		return fresh
	end
	local tags = {}
	each_print(fresh, function(tag) tags[tag] = true end)
	local all = fresh
	each_print(old, function(tag, sum)
		if not tags[tag] then
			all = all .. struct.pack('<I4', #tag) .. tag .. sum
		end
	end)
	return all
end

local function start(r, found, owner, terms, prints, client)
	prints = merge(r.prints, prints)
	if prints ~= r.prints or r.wipe and prints ~= '' then
		r.prints = prints
		r.set = { 'f', prints }
	end
	r.found_lease = 0
	if found == FOUND_FREE then
		r.created = now
		r.set[#r.set + 1], r.set[#r.set + 2] = 'c', client
	elseif found == FOUND_UNKNOWN then
		r.found_lease = r.lease_end
		without_result(r)
	end
	r.state, r.owner, r.token, r.attempt = HELD, owner, r.token + 1, r.attempt + 1
	r.lease, r.retention, r.remember, r.quiet, r.terms = struct.unpack('<i8i8i8i8B', terms)
	r.takeover = found == FOUND_UNKNOWN and 1 or 0
	r.lease_end = now + r.lease
	r.found, r.found_steps, r.released = found, r.nsteps, NOBODY
	r.window_end, r.expires = 0, 0
	written(r)
end

local function decide(owner, terms, prints, client)
	local r = load()
	if marked(r, owner) then
		return REFUSED, r, false
	end
	current(r)
	if r.state == FREE then
		start(r, FOUND_FREE, owner, terms, prints, client)
		return STARTED + FRESH, r, true
	end
	local equal, comparable = compare(r.prints, prints)
	local also = comparable and 0 or NOT_COMPARABLE
	if not equal then
		return MISMATCHED + also, r, false
	elseif r.state == HELD then
		local quiet = r.terms == HOLD and 0 or r.quiet
		if r.owner == owner then
			local t = now + struct.unpack('<i8', terms)
			local later = t > r.lease_end
			if later then
				r.lease_end = t
				written(r)
			end
			return STARTED + AGAIN + also, r, later
		elseif now < r.lease_end + quiet then
			return IN_PROGRESS + also, r, false
		elseif r.terms == HOLD then
			return UNKNOWN + also, r, false
		elseif r.terms == FAIL then
			without_result(r)
			r.class, r.status, r.by = FAILED_FINAL, 500, 3
			ended(r)
			r.owner, r.token = NOBODY, r.token + 1
			return REPLAYED + also, r, true
		end
		start(r, FOUND_UNKNOWN, owner, terms, prints, client)
		return STARTED + also, r, true
	elseif r.state == ENDED then
		if r.class == FAILED_RETRYABLE and now >= r.window_end then
			start(r, FOUND_RETRYABLE, owner, terms, prints, client)
			return STARTED + also, r, true
		end
		return REPLAYED + also, r, false
	end
	return ARCHIVED + also, r, false
end

-- reply writes what decide said, and is the reply: a fresh record's head is
-- enough, since the client has the rest.
local function reply(code, r, write)
	if write then
		save(r)
	end
	if code == STARTED + FRESH then
		return { code, now, r.head, r.marks }
	end
	return answer(code, r, r.state == ENDED or r.state == HELD)
end
