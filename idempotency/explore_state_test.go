package idempotency

import "fmt"

const maxAttempts = 3

// phase is what an attempt is doing.
type phase uint8

const (
	idle      phase = iota
	unsure          // Reserve returned an error
	voiding         // R10: it calls Void until it is answered
	holding         // it has the reservation and has sent nothing
	sent            // its request is with the upstream
	endDone         // it has a final answer to record
	endRetry        // it has a temporary answer to record
	endUnsure       // it gave up: it must record Unknown
	endNotRun       // nothing was sent: it must record NotRun
	finished
	crashed
)

// flight is where an attempt's request to the upstream is.
type flight uint8

const (
	grounded flight = iota
	travelling
	effective // the effect happened; the answer is on its way
	temporary // answered "try again", without effect
	lost
)

// message is a call that failed for its sender and may still arrive.
type message uint8

const (
	noMessage message = iota
	lateReserve
	lateExtend
	lateDone
	lateRetryable
	lateUnknown
	lateNotRun
	lateVoid
)

func (m message) op() op {
	return [...]op{lateReserve: opReserve, lateExtend: opRenew, lateDone: opDone, lateRetryable: opRetryable, lateUnknown: opUnknown, lateNotRun: opNotRun, lateVoid: opVoid}[m]
}

// ending is the message by which an attempt in that phase ends.
func (p phase) ending() message {
	return [...]message{endDone: lateDone, endRetry: lateRetryable, endUnsure: lateUnknown, endNotRun: lateNotRun}[p]
}

// attempt is one request that carries the key.
type attempt struct {
	phase     phase
	token     uint8
	flight    flight
	late      message
	lateToken uint8
	result    uint8
	takeover  bool
	probed    bool // the probe said that nothing was done
	stale     bool // it belongs to an earlier life of the key
	repeated  bool // its Reserve was sent more than once
	cancelled bool // the batcher has sent a Void for it (only where F6 is broken)
	own       int8 // what is left of the lease by its own clock (F8)
	left      int8 // what is left of the longest flight
}

// operator looks once and settles once, by what was seen.
type operator struct {
	phase uint8 // 0, 1: looked, 2: settled
	fresh bool  // nobody has written since
	saw   bool  // an effect
}

// state is everything. It is comparable: the key of what was visited.
type state struct {
	rec uint16
	at  [maxAttempts]attempt
	op  operator

	// What the properties remember of this life of the key.
	effects   uint8
	effect    uint8 // whose, or whose answer the upstream repeats
	told      uint8 // the final answer that a client was given
	takeovers uint8
	print     uint8 // of what was sent
	mayRun    uint8 // attempts that may have run, as bits
	sent      uint8 // attempts that sent
	maxToken  uint8
	owner     uint8 // whose the key rightly is

	errors, crashes, backs, forwards uint8 // faults left
}

// conduct is how the caller of the store behaves. The zero value is right.
type conduct struct {
	noGuard            bool // F8 left out
	batcherVoids       bool // F6: the batcher voids, and the caller may go on
	nodeIsOwner        bool // two attempts share an owner
	freesWhenSaveFails bool
	brokenIsNotRun     bool // a broken connection is taken for a refused one
	transportRepeats   bool
	badGatewayRetries  bool // 502 after the effect taken for "try again"
	answersFirst       bool // before the record
	keepsRepeat        bool // no Void where a repeated Reserve was answered with another outcome than Started
	closedFlight       bool // the effect may fall on the very end of the longest flight
}

// scenario is a policy, its bounds, and what must be found.
type scenario struct {
	name   string
	policy OnUnknown
	n      int
	prints [maxAttempts]uint8

	lease, quiet, retention, window, remember int8
	flight                                    int8 // the longest, 0: no bound

	errors, crashes, backs, forwards    uint8
	operator, dedup, steps, noTemporary bool

	conduct conduct
	mutate  []func(*rules)
	want    property // what it must break; 0: nothing
}

// property is a set of properties.
type property uint16

const (
	p1Hold      property = 1 << iota // at most one effect
	p2Probe                          // at most one effect while quiet is longer than the flight
	p3Retry                          // at most one effect more than takeovers
	p3Dedup                          // exactly one where the upstream knows keys
	p4OneAnswer                      // one answer for ever
	p5Fence                          // a fenced ending changes nothing
	p6Ends                           // nothing stays in progress for ever
	p7Print                          // another fingerprint never runs and never replays
	p8Restore                        // giving back never frees what may have run
	p9Unsent                         // a key on which nothing was sent does not stay unknown
	p10Token                         // tokens only grow
	p1Stale                          // no effect of an earlier life of the key
	p11Own                           // a repeated Reserve does not refuse itself
)

func (p property) String() string {
	names := [...]string{"P1", "P2", "P3", "P3dedup", "P4", "P5", "P6", "P7", "P8", "P9", "P10", "P1stale", "P11"}
	s := ""
	for i, n := range names {
		if p>>i&1 == 1 {
			s += " " + n
		}
	}
	if s == "" {
		return "none"
	}
	return s[1:]
}

// event names an edge.
type event uint8

const (
	evReserve event = iota
	evReserveFails
	evReserveAgain
	evReserveAbandoned
	evVoid
	evVoidFails
	evArrives
	evVanishes
	evSend
	evRefused
	evEffect
	evDies
	evTemporary
	evAnswer
	evAnswerTemporary
	evGiveUp
	evEnd
	evEndFails
	evExtend
	evExtendFails
	evProbeDone
	evProbeNotDone
	evProbeUnclear
	evCrash
	evTick
	evBack
	evForward
	evSweep
	evLook
	evSettle
	evForget
	evBatcherVoids
	evSaveFails
	evFenced
	evFresh
)

// label is an edge's name, for traces.
type label struct {
	ev  event
	who uint8
	x   uint8
}

func (l label) String() string {
	who := whoName(l.who + 1)
	switch l.ev {
	case evReserve, evReserveAgain, evFresh:
		verb := map[event]string{evReserve: "Reserve", evReserveAgain: "Reserve again after the error", evFresh: "a fresh claim when all is over"}[l.ev]
		if l.ev == evFresh {
			who = "somebody"
		}
		s := fmt.Sprintf("%s: %s: %v", who, verb, Outcome(l.x&15))
		if l.x&16 != 0 {
			s += ", a takeover"
		}
		return s
	case evArrives, evVanishes, evEnd, evEndFails:
		m := [...]string{"", "Reserve", "Extend", "End(Done)", "End(Done retryable)", "End(Unknown)", "End(NotRun)", "Void"}[l.x&15]
		s := who + ": " + map[event]string{evArrives: "late arrives ", evVanishes: "lost for good is ", evEnd: "", evEndFails: ""}[l.ev] + m
		switch {
		case l.ev == evEndFails:
			s += ": error, it may still arrive"
		case l.x&16 != 0:
			s += ": fenced"
		}
		return s
	}
	text := map[event]string{
		evReserveFails: "Reserve: error, it may still arrive", evReserveAbandoned: "gives Reserve up (R10)",
		evVoid: "Void", evVoidFails: "Void: error, it may still arrive",
		evSend: "sends to the upstream", evRefused: "connection refused",
		evEffect: "EFFECT", evDies: "dies on the way, without effect", evTemporary: "upstream says: try again",
		evAnswer: "gets the final answer", evAnswerTemporary: "gets the temporary answer", evGiveUp: "gives up waiting",
		evExtend: "Extend", evExtendFails: "Extend: error, it may still arrive",
		evProbeDone: "the probe says done", evProbeNotDone: "the probe says not done", evProbeUnclear: "the probe is unclear",
		evCrash: "CRASHES", evBatcherVoids: "the batcher voids its cancelled Reserve", evSaveFails: "save failed, frees the key",
		evFenced: "Extend: fenced, stops",
	}[l.ev]
	if text != "" {
		return who + ": " + text
	}
	return map[event]string{
		evTick: "a tick", evBack: "the store's clock steps back a tick", evForward: "the store's clock jumps a tick",
		evSweep: "Sweep", evLook: "operator looks", evSettle: "operator settles: done", evForget: "operator forgets: not done",
	}[l.ev]
}
