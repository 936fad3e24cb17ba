package redisstore_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/escapement-dev/escapement/store/redisstore"
)

func TestParseURL(t *testing.T) {
	for url, want := range map[string]string{
		"redis://h":              `[h:6379] "" "" 0 "" tls=false single=true`,
		"redis://h:1/3":          `[h:1] "" "" 3 "" tls=false single=true`,
		"rediss://u:p%40s@h:1":   `[h:1] "u" "p@s" 0 "" tls=true single=true`,
		"redis://:p@[::1]:7":     `[[::1]:7] "" "p" 0 "" tls=false single=true`,
		"redis+cluster://a:1,b":  `[a:1 b:6379] "" "" 0 "" tls=false single=false`,
		"rediss+cluster://u:p@a": `[a:6379] "u" "p" 0 "" tls=true single=false`,
		"redis+sentinel://a,b:2/main/1?sentinel_password=x": `[a:26379 b:2] "" "" 1 "main" tls=false single=false`,
	} {
		o, err := redisstore.ParseURL(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		got := fmt.Sprintf("%v %q %q %d %q tls=%v single=%v", o.InitAddress, o.Username, o.Password, o.SelectDB, o.Sentinel.MasterSet, o.TLSConfig != nil, o.ForceSingleClient)
		if got != want {
			t.Errorf("%s is\n%s, want\n%s", url, got, want)
		}
		if !o.DisableRetry || !o.AlwaysPipelining {
			t.Errorf("%s: the client would repeat calls, or not return when they are cancelled", url)
		}
	}
	for url, want := range map[string]string{
		"localhost:6379":                    "no scheme",
		"http://h":                          "not known",
		"redis://":                          "no host",
		"redis://a,b":                       "several hosts",
		"redis://h/x":                       "not a number",
		"redis://h/1/2":                     "too many parts",
		"redis://h?timeout=3":               "not known",
		"redis+sentinel://h":                "name of the master",
		"redis+cluster://h/1":               "only the database 0",
		"redis://u:se%cret@h":               "escape special characters",
		"redis://h?ca=/x":                   "scheme is one without",
		"rediss://h?cert=/x":                "only one of cert and key",
		"rediss://h/0?ca=":                  "without a value",
		"rediss://h?ca=/x&ca=/y":            "twice",
		"redis+cluster://h?sentinel_user=x": "not known",
		"redis+other://u:secret@h":          "not known",
		"redis+sentinel://h/m/x":            "not a number",
		"redis://u:secret@h/secret":         "not a number",
	} {
		_, err := redisstore.ParseURL(url)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v, want %q", url, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "u:") {
			t.Errorf("%s: the error has the password in it: %v", url, err)
		}
	}
}
