package httpgate

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

func sealed(b []byte) []byte {
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func TestCodecRoundTrip(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 1))
	noise := make([]byte, 100_000)
	for i := range noise {
		noise[i] = byte(rnd.Uint32())
	}
	for name, a := range map[string]Answer{
		"empty": {},
		"full": {
			Header:  http.Header{"Link": {"a", "b", ""}, "Etag": {`"x"`}, "Empty": {}},
			Trailer: http.Header{"Grpc-Status": {"0"}}, Body: []byte("hello"), Origin: "https://a.example",
		},
		"large":      {Body: bytes.Repeat([]byte("abcdefgh"), LargestMaxAnswer/8)},
		"noise":      {Body: noise},
		"compressed": {Header: http.Header{"Content-Encoding": {"gzip"}}, Body: bytes.Repeat([]byte("a"), 5000)},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := a.Encode()
			if err != nil {
				t.Fatal(err)
			}
			back, err := DecodeAnswer(p)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if len(back.Body) != len(a.Body) || !bytes.Equal(back.Body, a.Body) || back.Origin != a.Origin {
				t.Fatalf("seed %d: another body", seed)
			}
			for _, pair := range [][2]http.Header{{a.Header, back.Header}, {a.Trailer, back.Trailer}} {
				if len(pair[0])+len(pair[1]) > 0 && !reflect.DeepEqual(pair[0], pair[1]) {
					t.Fatalf("have %v, want %v", pair[1], pair[0])
				}
			}
			again, err := a.Encode()
			if err != nil || !bytes.Equal(again, p) {
				t.Error("the same answer has two encodings")
			}
			if name == "large" && len(p) > len(a.Body)/100 {
				t.Errorf("%d bytes of one pattern are kept in %d", len(a.Body), len(p))
			}
			if name == "noise" && len(p) > len(noise)+64 {
				t.Errorf("seed %d: noise grew to %d bytes", seed, len(p))
			}
		})
	}
}

func TestCodecRefuses(t *testing.T) {
	if _, err := (Answer{Body: make([]byte, LargestMaxAnswer+1)}).Encode(); err == nil {
		t.Error("a body over the bound was encoded")
	}
	if _, err := (Answer{Header: http.Header{"X": {strings.Repeat("x", maxFieldBytes)}}}).Encode(); err == nil {
		t.Error("fields over the bound were encoded")
	}
	good, err := Answer{Header: http.Header{"A": {"1"}}, Body: bytes.Repeat([]byte("ab"), 500)}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if _, err := DecodeAnswer(bad); err == nil {
			t.Errorf("byte %d was changed unseen", i)
		}
		if _, err := DecodeAnswer(good[:i]); err == nil {
			t.Errorf("cut at %d unseen", i)
		}
	}
	// A frame that unpacks to more than the bound, in a payload whose checksum
	// and length are right.
	bomb := encoder().EncodeAll(make([]byte, 40<<20), nil)
	for _, size := range []uint64{LargestMaxAnswer, 200 << 20, 1} {
		b := append([]byte{answerVersion, flagFrame, 0, 0, 0}, binary.AppendUvarint(nil, size)...)
		if a, err := DecodeAnswer(sealed(append(b, bomb...))); err == nil {
			t.Errorf("a bomb of %d bytes, said to be %d, gave %d", 40<<20, size, len(a.Body))
		}
	}
	for name, b := range map[string][]byte{
		"version": {9, 0, 0, 0, 0, 0}, "flags": {1, 2, 0, 0, 0, 0},
		"many fields":    append([]byte{1, 0, 0}, binary.AppendUvarint(nil, 1<<60)...),
		"many lines":     append([]byte{1, 0, 0, 1, 1, 'A'}, binary.AppendUvarint(nil, 1<<60)...),
		"order":          {1, 0, 0, 2, 1, 'B', 0, 1, 'A', 0, 0, 0},
		"long form":      {1, 0, 0x80, 0, 0, 0, 0},
		"length of 1":    {1, 0, 0, 0, 0, 1},
		"bytes too many": {1, 0, 0, 0, 0, 0, 7},
	} {
		if a, err := DecodeAnswer(sealed(b)); err == nil {
			t.Errorf("%s: have %+v", name, a)
		}
	}
}

func FuzzCodec(f *testing.F) {
	for _, a := range []Answer{{}, {Header: http.Header{"A": {"1", "2"}}, Body: []byte("x")}, {Body: bytes.Repeat([]byte("ab"), 400), Origin: "o", Trailer: http.Header{"T": {""}}}} {
		p, err := a.Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(p[:len(p)-4])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		DecodeAnswer(b)
		a, err := DecodeAnswer(sealed(bytes.Clone(b)))
		if err != nil {
			return
		}
		p, err := a.Encode()
		if err != nil {
			t.Fatalf("decoded, and cannot be encoded: %v", err)
		}
		back, err := DecodeAnswer(p)
		if err != nil || !reflect.DeepEqual(a, back) && len(a.Body)+len(back.Body) > 0 {
			t.Fatalf("%+v\n%+v\n%v", a, back, err)
		}
	})
}
