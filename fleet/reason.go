package fleet

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
)

// A Reason is a code with parameters that explains something. It contains no text; the
// message catalogue makes the text where it is shown. The zero Reason means no reason.
type Reason struct {
	Code   string `json:"code"` // stable, snake_case: "download_stalled"
	Params Params `json:"params,omitempty"`
}

// Params are the parameters of a code, by name. A value is a string, an int64, or a [Reason]
// that explains further. The end of a name gives the value's type:
//
//	_ms     a duration, in milliseconds
//	_bytes  a size, in bytes
//	_at     a time, RFC 3339 in UTC
//	_time   the same; pages write those of one day on the clock alone
//	_hex    an address, an identifier or a byte: texts write it in hexadecimal
//
// The parameter "case" is a second code that selects one of several texts of the first.
// Foreign text is cleaned and bounded before it becomes a parameter.
type Params map[string]any

// Case returns the second code, "" if the parameter is missing.
func (p Params) Case() string {
	c, _ := p["case"].(string)
	return c
}

// Because returns a reason. params alternates names and values. The part of the code after a
// dot is its case.
func Because(code string, params ...any) Reason {
	r := Reason{Code: code}
	if code, which, ok := strings.Cut(code, "."); ok {
		r = Reason{Code: code}.With("case", which)
	}
	for i := 0; i+1 < len(params); i += 2 {
		r = r.With(params[i].(string), params[i+1])
	}
	return r
}

// maxParamBytes bounds the text of a parameter, of which a device or client may have
// chosen all.
const maxParamBytes = 500

// With returns the reason with one more parameter. [CleanText] makes text fit to store
// and show. A value of another type becomes one of those that [Params] holds: a duration
// becomes milliseconds, a time becomes text.
func (r Reason) With(name string, value any) Reason {
	all := make(Params, len(r.Params)+1)
	for k, v := range r.Params {
		all[k] = v
	}
	switch v := value.(type) {
	case string:
		value = CleanText(v, maxParamBytes)
	case int64, Reason:
	case time.Duration:
		value = v.Milliseconds()
	case time.Time:
		value = v.UTC().Format(time.RFC3339)
	default:
		switch v := reflect.ValueOf(value); {
		case v.CanInt():
			value = v.Int()
		case v.Kind() == reflect.String:
			value = CleanText(v.String(), maxParamBytes)
		default:
			value = CleanText(fmt.Sprint(value), maxParamBytes)
		}
	}
	all[name] = value
	r.Params = all
	return r
}

// String returns the code and the parameters by name, for logs.
func (r Reason) String() string {
	var b strings.Builder
	b.WriteString(r.Code)
	if which := r.Params.Case(); which != "" {
		b.WriteString("." + which)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Params)) {
		if name == "case" {
			continue
		}
		switch v := r.Params[name].(type) {
		case string:
			fmt.Fprintf(&b, " %s=%q", name, v)
		case Reason:
			fmt.Fprintf(&b, " %s=(%v)", name, v)
		default:
			fmt.Fprintf(&b, " %s=%v", name, v)
		}
	}
	return b.String()
}

// Is reports whether the reason has the given code.
func (r Reason) Is(code string) bool { return r.Code == code }

// Or returns the reason, or other if the reason is the zero value.
func (r Reason) Or(other Reason) Reason {
	if r.Code == "" {
		return other
	}
	return r
}

// Equal reports whether both reasons have the same code and parameters.
func (r Reason) Equal(other Reason) bool {
	return r.Code == other.Code && len(r.Params) == len(other.Params) &&
		(len(r.Params) == 0 || reflect.DeepEqual(r.Params, other.Params))
}

// UnmarshalJSON decodes whole numbers to int64 and objects to reasons.
func (p *Params) UnmarshalJSON(text []byte) error {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(text, &raw); err != nil || raw == nil {
		*p = nil
		return err
	}
	*p = make(Params, len(raw))
	for name, value := range raw {
		v, err := paramOf(value)
		if err != nil {
			return fmt.Errorf("parameter %q: %w", name, err)
		}
		(*p)[name] = v
	}
	return nil
}

func paramOf(text json.RawMessage) (any, error) {
	switch text[0] {
	case '"':
		var s string
		err := json.Unmarshal(text, &s)
		return s, err
	case '{':
		var r Reason
		err := json.Unmarshal(text, &r)
		return r, err
	}
	var n int64
	err := json.Unmarshal(text, &n)
	return n, err
}
