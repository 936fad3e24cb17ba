package httpgate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"net/http"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// Answer is what is kept of an answer beside its status, which stands in the
// record itself.
type Answer struct {
	// Header and Trailer hold the field lines, in order per name.
	Header, Trailer http.Header
	// Body is the body's bytes.
	Body []byte
	// Origin is the field Origin of the request that was answered:
	// Access-Control fields are only replayed to the same.
	Origin string
}

// The form of a payload: the version, flags, Origin, Header, Trailer, the
// length of the body, the body (compressed if flagFrame is set) up to the
// last four bytes, and the CRC-32C of all before. Strings and lists are behind
// their lengths (unsigned varints); names are in byte order, each once.
const (
	answerVersion = 1
	flagFrame     = 1 // the body is one zstd frame
	maxFieldBytes = 512 << 10
	minFrame      = 256 // bytes of a body below which compression gains nothing
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errTooManyFields is returned by Encode; the answer cannot be kept.
var errTooManyFields = errors.New("httpgate: the answer's fields are over 512 KiB")

// The coders hold no goroutines: only EncodeAll and DecodeAll are used, which
// may be called concurrently.
var (
	encoder = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithLowerEncoderMem(true), zstd.WithEncoderCRC(false), zstd.WithWindowSize(1<<20))
		if err != nil {
			panic(err) // the options are constants
		}
		return e
	})
	decoder = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(LargestMaxAnswer), zstd.WithDecoderLowmem(true))
		if err != nil {
			panic(err)
		}
		return d
	})
)

// Encode returns a as the payload of a result. It fails only if the fields are
// over 512 KiB or the body over LargestMaxAnswer.
func (a Answer) Encode() ([]byte, error) {
	if len(a.Body) > LargestMaxAnswer {
		return nil, fmt.Errorf("httpgate: the answer has %d bytes: at most %d can be kept", len(a.Body), LargestMaxAnswer)
	}
	b := make([]byte, 0, 512+min(len(a.Body), 64<<10))
	b = append(b, answerVersion, 0)
	b = appendString(b, a.Origin)
	b = appendFields(b, a.Header)
	b = appendFields(b, a.Trailer)
	if len(b) > maxFieldBytes {
		return nil, errTooManyFields
	}
	b = binary.AppendUvarint(b, uint64(len(a.Body)))
	head := len(b)
	if len(a.Body) >= minFrame && a.Header.Get("Content-Encoding") == "" {
		b = encoder().EncodeAll(a.Body, b)
	}
	if n := len(b) - head; n > 0 && n < len(a.Body)-len(a.Body)/10 {
		b[1] |= flagFrame
	} else {
		b = append(b[:head], a.Body...)
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

// errPayload is what DecodeAnswer's errors wrap.
var errPayload = errors.New("httpgate: this is not a recorded answer")

// DecodeAnswer reads what [Answer.Encode] wrote, and nothing else: every byte
// counts. It needs no more memory than the body and the fields have.
func DecodeAnswer(payload []byte) (Answer, error) {
	var a Answer
	if len(payload) < 4+2 {
		return a, fmt.Errorf("%w: it has %d bytes", errPayload, len(payload))
	}
	body, sum := payload[:len(payload)-4], binary.BigEndian.Uint32(payload[len(payload)-4:])
	if crc32.Checksum(body, castagnoli) != sum {
		return a, fmt.Errorf("%w: its checksum is wrong", errPayload)
	}
	if body[0] != answerVersion || body[1]&^flagFrame != 0 {
		return a, fmt.Errorf("%w: version %d, flags %#x are not known here", errPayload, body[0], body[1])
	}
	d := fieldReader{b: body[2:], left: maxFieldBytes}
	a.Origin = d.string()
	a.Header = d.fields()
	a.Trailer = d.fields()
	size := d.uvarint()
	if d.bad {
		return Answer{}, fmt.Errorf("%w: its fields are broken", errPayload)
	}
	if size > LargestMaxAnswer {
		return Answer{}, fmt.Errorf("%w: a body of %d bytes", errPayload, size)
	}
	if body[1]&flagFrame == 0 {
		a.Body = bytes.Clone(d.b)
	} else {
		var err error
		if a.Body, err = decoder().DecodeAll(d.b, make([]byte, 0, min(size, 1<<20))); err != nil {
			return Answer{}, fmt.Errorf("%w: %w", errPayload, err)
		}
	}
	if uint64(len(a.Body)) != size {
		return Answer{}, fmt.Errorf("%w: its body has %d bytes, not %d", errPayload, len(a.Body), size)
	}
	return a, nil
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendFields(b []byte, h http.Header) []byte {
	b = binary.AppendUvarint(b, uint64(len(h)))
	for _, name := range slices.Sorted(maps.Keys(h)) {
		b = appendString(b, name)
		b = binary.AppendUvarint(b, uint64(len(h[name])))
		for _, v := range h[name] {
			b = appendString(b, v)
		}
	}
	return b
}

// fieldReader reads from b until something is wrong; then it is bad, and gives
// zero values. It makes at most left bytes of strings and slices.
type fieldReader struct {
	b    []byte
	left int
	bad  bool
}

func (d *fieldReader) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 || n > 1 && d.b[n-1] == 0 { // the shortest form only
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *fieldReader) string() string {
	n := d.uvarint()
	if n > uint64(len(d.b)) || n > uint64(d.left) {
		d.bad, d.b = true, nil
		return ""
	}
	s := string(d.b[:n])
	d.b, d.left = d.b[n:], d.left-int(n)
	return s
}

func (d *fieldReader) fields() http.Header {
	n := d.uvarint()
	if n == 0 || d.bad {
		return nil
	}
	if n > uint64(len(d.b)) { // each has at least a byte
		d.bad = true
		return nil
	}
	h, last := make(http.Header), ""
	for i := uint64(0); i < n && !d.bad; i++ {
		name := d.string()
		if i > 0 && name <= last {
			d.bad = true
			break
		}
		last = name
		count := d.uvarint()
		if count > uint64(len(d.b)) {
			d.bad = true
			break
		}
		lines := make([]string, 0, min(count, 8))
		for range count {
			lines = append(lines, d.string())
			if d.bad {
				break
			}
		}
		h[name] = lines
	}
	return h
}
