package idempotency

// walker takes one scenario from state to state.
type walker struct {
	*scenario
	book   *book
	broken property // by the edge being made
	out    func(label, state)
}

func (w *walker) owner(i int) uint8 {
	if w.conduct.nodeIsOwner && i < 2 {
		return 1
	}
	return uint8(i + 1)
}

func (w *walker) emit(ev event, who int, x uint8, s state) {
	w.canon(&s)
	w.out(label{ev, uint8(who), x}, s)
	w.broken = 0
}

// canon forgets what can no longer matter.
func (w *walker) canon(s *state) {
	for i := range s.at {
		a := &s.at[i]
		if a.phase == finished || a.phase == crashed {
			*a = attempt{
				phase: a.phase, flight: a.flight, late: a.late, lateToken: a.lateToken, result: a.result,
				stale: a.stale, repeated: a.repeated && a.late == lateNotRun, left: a.left,
			}
			if a.flight != travelling {
				a.flight, a.stale = grounded, false
			}
			if a.late != lateDone {
				a.result = 0
			}
			if a.late == noMessage {
				a.phase = finished
			}
		}
		if a.phase != holding {
			a.own = 0
		}
		if a.flight != travelling || w.flight == 0 {
			a.left = 0
		}
	}
	if s.op.phase != 1 {
		s.op = operator{phase: s.op.phase}
	}
}

// write puts the store's new record in place.
func (w *walker) write(s *state, r reply) {
	if r.changed {
		s.op.fresh = false
	}
	if w.book.over(s.rec) && r.rec != s.rec {
		w.newLife(s)
	}
	v := &w.book.shapes[r.rec]
	switch {
	case v.state == Free:
		s.maxToken, s.owner = 0, 0
	case v.token < s.maxToken, r.begun && v.token == s.maxToken:
		w.broken |= p10Token
	}
	s.maxToken = max(s.maxToken, v.token)
	s.rec = r.rec
}

// newLife begins when a record has expired: its promises end with it.
func (w *walker) newLife(s *state) {
	s.effects, s.effect, s.told, s.takeovers, s.print, s.mayRun, s.sent, s.maxToken, s.owner = 0, 0, 0, 0, 0, 0, 0, 0, 0
	for i := range s.at {
		a := &s.at[i]
		if a.phase >= holding && a.phase < finished || a.flight == travelling {
			a.stale = true
		}
		if a.late == lateReserve && a.phase > voiding {
			a.late, a.lateToken = noMessage, 0
		}
	}
}

// tell gives a client the final answer of who.
func (w *walker) tell(s *state, who uint8) {
	switch s.told {
	case 0:
		s.told = who
	case who:
	default:
		w.broken |= p4OneAnswer
	}
}

// lookup answers a fenced attempt's client by the record.
func (w *walker) lookup(s *state) {
	if v := &w.book.shapes[s.rec]; v.state == Ended && v.class != FailedRetryable && v.expires > 0 {
		w.tell(s, v.result)
	}
}

func (w *walker) reserve(s *state, i int) reply {
	r := w.book.do(call{rec: s.rec, op: opReserve, who: w.owner(i), result: w.prints[i]})
	if v := &w.book.shapes[r.rec]; r.outcome == Replayed && v.print != w.prints[i]+1 {
		w.broken |= p7Print
	}
	changed := r.rec != s.rec
	if old := &w.book.shapes[s.rec]; r.outcome != Started && old.state == Held && old.owner == w.owner(i) && old.print == w.prints[i]+1 && old.marks>>old.owner&1 == 0 {
		w.broken |= p11Own
	}
	w.write(s, r)
	switch {
	case r.begun:
		if s.at[i].flight == grounded {
			s.at[i].stale = false
		}
		s.owner = uint8(i + 1)
		s.mayRun |= 1 << i
		if r.takeover {
			s.takeovers++
		}
	case r.outcome != Started && changed: // settled by the policy
		s.owner = 0
	}
	return r
}

// answered goes on with what Reserve said.
func (w *walker) answered(s *state, i int, r reply) uint8 {
	a := &s.at[i]
	x := uint8(r.outcome)
	a.phase = finished
	switch r.outcome {
	case Started:
		a.phase, a.token, a.takeover, a.own = holding, r.token, r.takeover, w.lease
		a.repeated = a.repeated || r.repeated
		if r.takeover {
			x |= 16
		}
	case Replayed:
		w.lookup(s)
	}
	if a.phase == finished && a.repeated && !w.conduct.keepsRepeat {
		a.phase = voiding // a copy of Reserve may still be on its way
	}
	return x
}

// apply makes a call that only the owner may make, and watches the fence.
func (w *walker) apply(s *state, i int, o op, token, result uint8) bool {
	a := &s.at[i]
	flag := o == opNotRun && a.repeated
	r := w.book.do(call{rec: s.rec, op: o, who: w.owner(i), token: token, result: result, flag: flag})
	before, over := w.book.shapes[s.rec], w.book.over(s.rec)
	after := w.book.shapes[r.rec]
	before.marks, after.marks = 0, 0
	over = over || before.state == Ended && before.expires <= 0 // then it may shrink
	written := before != after && !over
	if written && s.owner != uint8(i+1) {
		w.broken |= p5Fence
	}
	if !r.ok {
		return false
	}
	gone := o == opNotRun || o == opVoid
	if gone || o == opRetryable {
		s.mayRun &^= 1 << i
	}
	if gone && written {
		s.owner = 0
		if after.state == Free {
			if s.mayRun != 0 {
				w.broken |= p8Restore
			}
			s.print = 0
		}
	}
	w.write(s, r)
	return true
}

// end says how the attempt ended, and answers its client.
func (w *walker) end(s *state, i int) (ok bool) {
	a := &s.at[i]
	ok = w.apply(s, i, a.phase.ending().op(), a.token, a.result)
	if !ok {
		w.lookup(s)
	} else if a.phase == endDone {
		w.tell(s, a.result)
	}
	a.phase = finished
	return ok
}

// deliver brings a late message; nobody hears the reply.
func (w *walker) deliver(s *state, i int, m message, token uint8) {
	if m == lateReserve {
		w.reserve(s, i)
		return
	}
	w.apply(s, i, m.op(), token, s.at[i].result)
}

func (w *walker) maySend(a *attempt) bool {
	return (w.policy != Probe || !a.takeover || a.probed) && (w.conduct.noGuard || a.own > 0)
}

// send reports false if a step had to be saved first and was refused.
func (w *walker) send(s *state, i int) bool {
	a := &s.at[i]
	if w.steps && !w.apply(s, i, opStepStarted, a.token, 0) {
		return false
	}
	a.phase, a.flight, a.left = sent, travelling, w.flight
	if !a.stale {
		if s.print != 0 && s.print != w.prints[i]+1 {
			w.broken |= p7Print
		}
		s.print = w.prints[i] + 1
		s.sent |= 1 << i
	}
	return true
}

// happen is the effect at the upstream.
func (w *walker) happen(s *state, i int) {
	a := &s.at[i]
	if w.dedup && s.effect != 0 {
		a.result = s.effect
		return
	}
	if a.stale {
		if w.policy != Retry {
			w.broken |= p1Stale
		}
		return
	}
	a.result = uint8(i + 1)
	s.effects = min(s.effects+1, 7)
	if s.effect == 0 {
		s.effect = a.result
	}
	switch {
	case w.dedup:
		if s.effects > 1 {
			w.broken |= p3Dedup
		}
	case w.policy == Retry:
		if s.effects > 1+s.takeovers {
			w.broken |= p3Retry
		}
	case s.effects > 1:
		w.broken |= map[OnUnknown]property{Hold: p1Hold, Fail: p1Hold, Probe: p2Probe}[w.policy]
	}
	if s.told != 0 && w.policy != Retry && !w.dedup {
		w.broken |= p4OneAnswer
	}
}

func (w *walker) inFlight(s *state) bool {
	for i := range s.at {
		if s.at[i].flight == travelling {
			return true
		}
	}
	return false
}
