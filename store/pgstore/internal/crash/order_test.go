package crash

import "testing"

// An order and its record are one transaction. Programs are killed at every
// point of it, over and over, while another one repeats their keys: orders =
// distinct keys, and every answer is replayed as it was given.
func TestOrdersSurviveKills(t *testing.T) {
	points := []string{beforeClaim, afterClaim, called, begun, fenced, written, ended, commitHalf, commitSent, committed, answering, storeSent}
	c := newCampaign(t, seed(t))
	c.start(&strike{})
	silent, undone := 0, 0
	for round := range length(25, 1000) {
		s := &strike{At: points[round%len(points)], How: byKill, Times: int64(1 + c.random.IntN(each))}
		victim := c.start(s)
		keys := c.send(victim)
		if err := victim.struck(); err != nil {
			c.check()
			t.Fatalf("round %d, %s: %v", round, s.At, err)
		}
		c.gone(victim)
		c.check()
		made := c.orders()
		for _, k := range keys {
			switch {
			case k.answered() != nil:
			case made[k.name] != nil:
				silent++
			default:
				undone++
			}
		}
	}
	c.start(&strike{})
	c.judge(c.orders)
	// A campaign that never meets a case proves nothing about it.
	taken := c.takeovers()
	t.Logf("kills left %d orders without an answer, %d keys without an order; %d takeovers", silent, undone, taken)
	if !t.Failed() && (silent == 0 || undone == 0 || taken == 0) {
		t.Error("a case was never met")
	}
}

// The connection breaks while COMMIT is on its way: the program does not know
// whether it was done, and asks the record. That is right also where the COMMIT
// arrives after the question.
func TestOrdersSurviveLostCommits(t *testing.T) {
	points := []string{commitHalf, commitSent, commitLate, storeSent}
	c := newCampaign(t, seed(t))
	c.start(&strike{})
	for round := range length(12, 300) {
		s := &strike{At: points[round%len(points)], How: byCut, Times: int64(1 + c.random.IntN(each))}
		p := c.start(s)
		c.send(p)
		c.await(len(c.keys))
		c.gone(p)
		if err := p.stop(); err != nil {
			t.Error(err)
		}
	}
	c.start(&strike{})
	c.judge(c.orders)
}

// The server is stopped at once, as a crash of it would, and started again,
// while two programs work on it. When it is back they recover by themselves, and
// nothing is left open in them.
func TestOrdersSurviveCrashesOfTheServer(t *testing.T) {
	c := newCampaign(t, seed(t))
	c.start(&strike{})
	c.start(&strike{})
	for round := range length(4, 100) {
		for range 4 {
			c.send(c.any())
		}
		all := len(c.keys)
		c.await(all - 1 - c.random.IntN(4*each))
		if err := c.server.Restart(); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		c.await(all - each)
	}
	c.judge(c.orders)
}
