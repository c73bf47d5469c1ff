package i18n

import (
	"strings"
	"time"

	"fleetd/fleet"
)

// Because writes the message of a code: message prefix+code with the code's
// parameters, each written as the end of its name says (see [fleet.Params]).
// zone is that of the reader's clock. A parameter that is a reason is written
// with the same prefix. A code without a message is written as it is: it came
// from a newer version, or from the wire.
func Because(l Lang, zone *time.Location, prefix string, r fleet.Reason) string {
	if r.Code == "" {
		return ""
	}
	if !Has(prefix + r.Code) {
		return r.Code
	}
	args := make([]any, 0, 2*len(r.Params))
	for name, value := range r.Params {
		args = append(args, name, param(l, zone, prefix, name, value))
	}
	return Text(l, prefix+r.Code, args...)
}

func param(l Lang, zone *time.Location, prefix, name string, value any) any {
	switch v := value.(type) {
	case fleet.Reason:
		return Because(l, zone, prefix, v)
	case int64:
		switch {
		case strings.HasSuffix(name, "_ms"):
			return time.Duration(v) * time.Millisecond
		case strings.HasSuffix(name, "_bytes"):
			return Bytes(l, v)
		}
	case string:
		if at, err := time.Parse(time.RFC3339, v); err == nil && strings.HasSuffix(name, "_at") {
			return at.In(zone)
		}
	}
	return value
}
