package httpgate

import (
	"errors"
	"net/textproto"
	"strings"

	"github.com/dunglas/httpsfv"

	"github.com/escapement-dev/escapement/idempotency"
)

// KeyField is the name of the field that carries the client's key
// (draft-ietf-httpapi-idempotency-key-header).
const KeyField = "Idempotency-Key"

// parseKey reads the lines of a key field, of which there is at least one. The
// error says what is wrong without repeating the field.
//
// A value in quotes is a String of RFC 9651, 3.3.3; its parameters do not
// count. A bare value is the key itself; it has no quote, comma or semicolon,
// so that a list or a parameter is never taken for a part of a key. Both forms
// of one key name the same.
func parseKey(lines []string) (string, error) {
	if len(lines) != 1 {
		return "", errors.New("the request has more than one key: want exactly one field line")
	}
	v := textproto.TrimString(lines[0])
	if v == "" {
		return "", errors.New("the field is empty: want a key of 1 to 255 visible ASCII characters")
	}
	key := v
	if v[0] == '"' {
		item, err := httpsfv.UnmarshalItem([]string{v})
		if err != nil {
			return "", errors.New(`the field is not a structured field String: want one value such as "8e03978e", in quotes, with \" and \\ as the only escapes`)
		}
		key, _ = item.Value.(string)
	} else if strings.ContainsAny(v, `",;`) {
		return "", errors.New("a key without quotes may not have a quote, a comma or a semicolon in it: want one key, or write it in quotes")
	}
	if err := idempotency.ValidateKey(key); err != nil {
		return "", err
	}
	return key, nil
}
