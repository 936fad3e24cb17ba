package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/escapement-dev/escapement/idempotency"
)

// The codes of reserve.lua beside the outcome.
const (
	codeOutcome       = 15
	codeAgain         = 16
	codeNotComparable = 32
	codeFresh         = 64
)

// Reserve implements idempotency.Store, in one round trip; in two where the
// record's payload and steps are over 64 KiB. It is sent again if a reply is
// lost and ctx has not ended; the reservation then says Repeated.
func (s *Store) Reserve(ctx context.Context, c idempotency.Claim) (idempotency.Answer, error) {
	if err := s.validClaim(ctx, &c); err != nil {
		return idempotency.Answer{}, err
	}
	key := s.recordKey(c.Key)
	args := [6]string{5: "0"} // no charges
	packClaim(args[:], &c)
	for range changes {
		msg, twice, err := s.repeat(ctx, claimScript, key, args[:]...)
		if errors.Is(err, ErrUnconfirmed) {
			// If this fails too, the caller goes on with it (R10).
			return idempotency.Answer{}, errors.Join(err, s.Void(ctx, c.Key, c.Owner))
		}
		if err != nil {
			return idempotency.Answer{}, err
		}
		msgs, err := msg.ToArray()
		if err != nil || len(msgs) == 0 {
			return idempotency.Answer{}, errForm
		}
		a, d, err := readAnswer(&c, msgs[1:]) // behind what it says about charges
		if err != nil {
			return idempotency.Answer{}, err
		}
		if a.Outcome == idempotency.Started {
			a.Reservation.Repeated = a.Reservation.Repeated || twice
		} else if twice { // R12: a copy that arrives late must not claim the key
			if err := s.Void(ctx, c.Key, c.Owner); err != nil {
				return idempotency.Answer{}, err
			}
		}
		changed, err := s.bodies(ctx, key, &a.Record, &d)
		if err != nil {
			return idempotency.Answer{}, err
		}
		if !changed {
			return a, nil
		}
	}
	return idempotency.Answer{}, explain("reserve", errChanging)
}

func (s *Store) validClaim(ctx context.Context, c *idempotency.Claim) error {
	if err := errors.Join(ctx.Err(), c.Validate()); err != nil {
		return err
	}
	return fitTerms(&c.Terms)
}

// readAnswer reads the reply to a claim.
func readAnswer(c *idempotency.Claim, msgs []rueidis.RedisMessage) (a idempotency.Answer, d stored, err error) {
	if len(msgs) < 3 {
		return a, d, errForm
	}
	code, err := msgs[0].AsInt64()
	if err != nil {
		return a, d, errForm
	}
	a.Outcome = idempotency.Outcome(code & codeOutcome)
	a.NotComparable = code&codeNotComparable != 0
	if code&codeFresh != 0 {
		d, err = readFresh(c, msgs)
	} else {
		d, _, _, err = readRecord(c.Key.ID, msgs[1:])
	}
	if err != nil {
		return a, d, err
	}
	d.rec.Key = c.Key
	a.Record = d.rec
	a.Record, _ = idempotency.View(a.Record, a.Record.AsOf)
	if a.Outcome == idempotency.Started {
		a.Reservation = idempotency.Reservation{
			Key: c.Key, Owner: c.Owner, Token: a.Record.Token, LeaseEnd: a.Record.LeaseEnd,
			Takeover: a.Record.Takeover, Repeated: code&codeAgain != 0,
		}
	}
	return a, d, nil
}

// readFresh reads the short reply about a key that was free.
func readFresh(c *idempotency.Claim, msgs []rueidis.RedisMessage) (stored, error) {
	us, err := msgs[1].AsInt64()
	if err != nil || len(msgs) < 4 {
		return stored{}, errForm
	}
	d, _, err := readHead(text(msgs[2]))
	if err != nil || readMarks(text(msgs[3]), &d.rec) {
		return stored{}, errForm
	}
	d.rec.Key, d.rec.Origin, d.rec.AsOf = c.Key, c.Origin, fromMicros(us)
	d.rec.Prints = append([]idempotency.Fingerprint(nil), c.Prints...)
	return d, nil
}

// changes is how often a record that changes between two calls is read anew.
const changes = 16

var errChanging = errors.New("the record changed again and again while its payload was read")

// bodies reads payload and answers that did not come with the record. Changed
// reports that the record is no longer the same: read it again.
func (s *Store) bodies(ctx context.Context, key string, rec *idempotency.Record, d *stored) (changed bool, err error) {
	if d.whole() || rec.State != idempotency.Ended && rec.State != idempotency.Held {
		return false, nil
	}
	fields := []string{"h", "p"}
	if d.alen > 0 {
		for i := range rec.Steps {
			fields = append(fields, "a"+strconv.Itoa(i+1))
		}
	}
	got, err := s.do(ctx, func() rueidis.Completed { return s.client.B().Hmget().Key(key).Field(fields...).Build() }).ToArray()
	if err != nil {
		return false, explain("read a payload", err)
	}
	if len(got) != len(fields) {
		return false, errForm
	}
	if got[0].IsNil() {
		return true, nil
	}
	h, _, err := readHead(text(got[0]))
	if err != nil {
		return false, err
	}
	if h.rec.Revision != rec.Revision {
		return true, nil
	}
	if p := body(got[1]); p != nil {
		rec.Result.Payload = p
	}
	for i, m := range got[2:] {
		if a := body(m); a != nil {
			rec.Steps[i].Answer = a
		}
	}
	return false, nil
}

// Extend implements idempotency.Store. It may be repeated, and is.
func (s *Store) Extend(ctx context.Context, r idempotency.Reservation, lease time.Duration) (time.Time, error) {
	if err := errors.Join(ctx.Err(), fitSpan("lease", &lease)); err != nil {
		return time.Time{}, err
	}
	n, err := s.number(ctx, extendScript, s.recordKey(r.Key), "", string(r.Owner[:]), token(r.Token), micros(lease))
	switch {
	case err != nil:
		return time.Time{}, err
	case n == 0:
		return time.Time{}, idempotency.ErrFenced
	}
	return fromMicros(n), nil
}

// End implements idempotency.Store. It may be repeated, and is (F2).
func (s *Store) End(ctx context.Context, r idempotency.Reservation, e idempotency.Ending) error {
	if err := errors.Join(ctx.Err(), e.Validate(), fitSpan("window", &e.Result.Window)); err != nil {
		return err
	}
	repeated := ""
	if r.Repeated {
		repeated = "1"
	}
	n, err := s.number(ctx, endScript, s.recordKey(r.Key), "", string(r.Owner[:]), token(r.Token), repeated,
		strconv.Itoa(kinds[e.Kind]), packResult(e.Result), string(e.Result.Payload))
	if err == nil && n == 0 {
		return idempotency.ErrFenced
	}
	return err
}

// kinds are the numbers of end.lua.
var kinds = map[idempotency.EndingKind]int{
	idempotency.EndedUnknown: 0, idempotency.EndedDone: 1, idempotency.EndedNotRun: 2,
}

// Void implements idempotency.Store.
func (s *Store) Void(ctx context.Context, k idempotency.Key, o idempotency.Owner) error {
	if err := ctx.Err(); err != nil || o.IsZero() {
		return err
	}
	_, err := s.number(ctx, voidScript, s.recordKey(k), "", string(o[:]))
	return err
}

// Lookup implements idempotency.Store, in two round trips where payload and
// steps are over 64 KiB.
func (s *Store) Lookup(ctx context.Context, k idempotency.Key) (idempotency.Record, error) {
	if err := ctx.Err(); err != nil {
		return idempotency.Record{}, err
	}
	key := s.recordKey(k)
	for range changes {
		msg, _, err := s.repeat(ctx, lookupScript, key, "", "1")
		if err != nil {
			return idempotency.Record{}, err
		}
		msgs, err := msg.ToArray()
		if err != nil || len(msgs) < 3 {
			return idempotency.Record{}, errForm
		}
		d, now, ok, err := readRecord(k.ID, msgs[1:])
		if err != nil {
			return idempotency.Record{}, err
		}
		rec, live := idempotency.View(d.rec, now)
		if !ok || !live {
			return idempotency.Record{}, idempotency.ErrNotFound
		}
		changed, err := s.bodies(ctx, key, &rec, &d)
		if err != nil {
			return idempotency.Record{}, err
		}
		if !changed {
			return rec, nil
		}
	}
	return idempotency.Record{}, explain("look up", errChanging)
}

// SaveStep implements idempotency.StepStore. It may be repeated, and is.
func (s *Store) SaveStep(ctx context.Context, r idempotency.Reservation, st idempotency.Step) error {
	if err := errors.Join(ctx.Err(), st.Validate()); err != nil {
		return err
	}
	done := ""
	if st.Done {
		done = "1"
	}
	n, err := s.number(ctx, stepScript, s.recordKey(r.Key), "", string(r.Owner[:]), token(r.Token), done,
		st.Name, st.ProviderKey, st.ProviderID, string(st.Answer))
	switch {
	case err != nil:
		return err
	case n == 0:
		return idempotency.ErrFenced
	case n == 2:
		return idempotency.ErrStep
	}
	return nil
}

// number runs a script that may be repeated and answers with a number.
func (s *Store) number(ctx context.Context, sc *script, key string, args ...string) (int64, error) {
	msg, _, err := s.repeat(ctx, sc, key, args...)
	if err != nil {
		return 0, err
	}
	n, err := msg.AsInt64()
	if err != nil {
		return 0, fmt.Errorf("redisstore: %s: %w", sc.name, errForm)
	}
	return n, nil
}

func token(t idempotency.Token) string { return strconv.FormatInt(int64(t), 10) }

func micros(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }
