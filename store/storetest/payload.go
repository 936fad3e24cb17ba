package storetest

import (
	"bytes"
	"math/rand/v2"

	"github.com/escapement-dev/escapement/idempotency"
)

// payloadCases test that what is kept is what was given.
var payloadCases = []Case{
	recordCase("R7PayloadsAreByteExact", nil, func(e *env) {
		most := e.h.Caps.MaxPayload
		if most == 0 {
			most = 16 << 20
		}
		for i, n := range []int{0, 1, 255, 256, 4095, 4096, 4097, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1 << 20, most} {
			if n > most {
				continue
			}
			c := claim(testKey(i), idempotency.Hold)
			want := allBytes(n)
			res := ok("")
			res.Payload = bytes.Clone(want)
			r := e.start(c)
			e.done(r, res)
			again1 := res
			again1.Payload = bytes.Clone(want)
			e.done(r, again1) // F2, by value
			clear(res.Payload)
			if a := e.reserve(again(c), idempotency.Replayed); !bytes.Equal(a.Record.Result.Payload, want) {
				e.Fatalf("a payload of %d bytes is replayed with %d, not the same", n, len(a.Record.Result.Payload))
			}
			if got := e.lookup(c.Key).Result.Payload; !bytes.Equal(got, want) {
				e.Fatalf("a payload of %d bytes is looked up with %d, not the same", n, len(got))
			}
		}
	}),
	recordCase("R7CallersCannotChangeWhatIsKept", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		res := ok("original")
		e.done(e.start(c), res)
		copy(res.Payload, "spoiled!")
		copy(c.Prints, []idempotency.Fingerprint{printOf("v1", "spoiled")})
		good := claim(c.Key, idempotency.Hold)
		for range 2 {
			a := e.reserve(again(good), idempotency.Replayed)
			if string(a.Record.Result.Payload) != "original" {
				e.Fatalf("the replay is %s", showResult(a.Record.Result))
			}
			copy(a.Record.Result.Payload, "spoiled!")
			copy(a.Record.Prints, []idempotency.Fingerprint{printOf("v1", "spoiled")})
			rec := e.lookup(c.Key)
			copy(rec.Result.Payload, "spoiled!")
		}
	}),
	recordCase("InvalidEndingIsAnError", nil, func(e *env) {
		c := claim(testKey(1), idempotency.Hold)
		r := e.start(c)
		for name, g := range map[string]idempotency.Ending{
			"no class":            idempotency.Done(idempotency.Result{}),
			"a window on success": idempotency.Done(idempotency.Result{Class: idempotency.Succeeded, Window: 1000}),
			"a result and NotRun": {Kind: idempotency.EndedNotRun, Result: ok("x")},
			"no known kind":       {Kind: 99},
		} {
			if err := e.s.End(e.ctx(), r, g); err == nil {
				e.Fatalf("End with %s returns nil, want an error", name)
			}
		}
		e.reserve(again(c), idempotency.InProgress)
		e.done(r, ok("fine"))
	}),
	recordCase("R7TextIsKeptAsItIs", nil, func(e *env) {
		for i, text := range []string{"a'b\"c;--", "é漢\U0001F600", "a\tb\\n%s{}$1?", " lead and trail "} {
			c := claim(tenantKey(text, i), idempotency.Hold)
			c.Prints = []idempotency.Fingerprint{printOf(text, "x")}
			c.Origin = idempotency.Origin{Method: text, Route: text, Trace: text}
			e.start(c)
			rec := e.lookup(c.Key)
			if rec.Key != c.Key || rec.Origin != c.Origin || rec.Prints[0] != c.Prints[0] {
				e.Fatalf("a record of %q came back as %v", text, show(rec))
			}
		}
	}),
}

// allBytes is n bytes that have every value, and do not compress.
func allBytes(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)})
	r.Read(b)
	for i := range min(n, 256) {
		b[i] = byte(i)
	}
	return b
}
