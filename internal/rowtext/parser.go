package rowtext

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Parser reads fields that one space separates. The first fault stays, and
// what is read after it is without meaning.
type Parser struct {
	s    string
	done bool
	err  error
}

// NewParser returns a parser of s, which has one field at least: the empty text
// is one empty field.
func NewParser(s string) *Parser { return &Parser{s: s} }

// More reports whether there is another field, and no fault so far.
func (p *Parser) More() bool { return !p.done && p.err == nil }

// End returns the first fault; fields that nobody has read are one.
func (p *Parser) End() error {
	if !p.done {
		p.fail(errors.New("too many fields"))
	}
	return p.err
}

func (p *Parser) fail(err error) {
	if p.err == nil {
		p.err = err
	}
}

// Text reads a field as it is.
func (p *Parser) Text() string {
	if p.done {
		p.fail(errors.New("too few fields"))
		return ""
	}
	f, rest, found := strings.Cut(p.s, " ")
	p.s, p.done = rest, !found
	return f
}

// Int reads an integer.
func (p *Parser) Int() int64 {
	f := p.Text()
	n, err := strconv.ParseInt(f, 10, 64)
	if err != nil {
		p.fail(fmt.Errorf("%q is not an integer", f))
	}
	return n
}

// Small reads an integer from 0 to limit.
func (p *Parser) Small(limit int64) uint8 {
	n := p.Int()
	if n < 0 || n > limit {
		p.fail(fmt.Errorf("%d is not one of 0 to %d", n, limit))
		return 0
	}
	return uint8(n)
}

// Duration reads microseconds, not negative.
func (p *Parser) Duration() time.Duration {
	n := p.Int()
	if n < 0 || n > math.MaxInt64/int64(time.Microsecond) {
		p.fail(fmt.Errorf("%d is not a duration in microseconds", n))
		return 0
	}
	return time.Duration(n) * time.Microsecond
}

// Time reads microseconds since 1970-01-01 UTC. An empty field is no time.
func (p *Parser) Time() time.Time {
	if strings.HasPrefix(p.s, " ") || p.s == "" && !p.done {
		p.Text()
		return time.Time{}
	}
	n := p.Int()
	if p.err != nil {
		return time.Time{}
	}
	return time.UnixMicro(n).UTC()
}

// Hex reads hexadecimal digits; of an empty field, nil.
func (p *Parser) Hex() []byte {
	f := p.Text()
	if f == "" {
		return nil
	}
	b, err := hex.DecodeString(f)
	if err != nil {
		p.fail(errors.New("not hexadecimal"))
	}
	return b
}

// HexInto reads as many hexadecimal digits as fill dst.
func (p *Parser) HexInto(dst []byte) {
	f := p.Text()
	if len(f) != 2*len(dst) {
		p.fail(fmt.Errorf("want %d hexadecimal digits, have %d", 2*len(dst), len(f)))
		return
	}
	if _, err := hex.Decode(dst, []byte(f)); err != nil {
		p.fail(errors.New("not hexadecimal"))
	}
}
