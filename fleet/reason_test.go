package fleet

import (
	"strings"
	"testing"
)

// Devices and clients choose text that becomes parameters. A reason never holds text
// that cannot be stored or shown, nor text without a bound.
func TestParametersAreClean(t *testing.T) {
	type name string
	for given, want := range map[any]string{
		"plain":                   "plain",
		"a\x00b\u202ec\nd\xff":    "abcd",
		name("no\x1bname"):        "noname",
		strings.Repeat("é", 1000): strings.Repeat("é", maxParamBytes/2),
	} {
		if got := Because("code", "value", given).Params["value"]; got != want {
			t.Errorf("%q becomes %q, want %q", given, got, want)
		}
		if got := Refuse(ErrInvalid, "code", "value", given).Params["value"]; got != want {
			t.Errorf("of an error, %q becomes %q, want %q", given, got, want)
		}
	}
}
