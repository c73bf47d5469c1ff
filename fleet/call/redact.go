package call

import (
	"encoding/json"
	"maps"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// ErrRedacted refuses arguments with a digest in the place of a value: they were copied from a record.
var ErrRedacted = fleet.Refuse(fleet.ErrInvalid, "redacted_arguments").At("arguments")

// codeUnreadable is the code of a call whose sealed arguments cannot be read.
const codeUnreadable = "arguments_unreadable"

// redact replaces values under redaction rules in the record of a new call.
func (a *attempt) redact() {
	c := a.call
	c.Arguments, c.Digests, c.Sealed = a.calls.redacted(c.ID, c.Tool, c.Arguments)
	a.shown = c.Arguments
}

// redacted returns arguments as records store them, the digests in them, and the true arguments for the
// thing with the id, encrypted; these are nil without digests.
func (s *Service) redacted(id uuid.UUID, tool string, arguments json.RawMessage) (shown json.RawMessage,
	digests []string, sealed []byte) {
	if shown, digests = s.o.Redaction.Redact(tool, arguments); len(digests) > 0 {
		sealed = s.o.Redaction.Seal(id, arguments)
	}
	return shown, digests, sealed
}

// trueArguments returns the arguments to send, given those on record.
func (s *Service) trueArguments(id uuid.UUID, shown json.RawMessage, sealed []byte) (json.RawMessage, error) {
	if sealed == nil {
		return shown, nil
	}
	return s.o.Redaction.Open(id, sealed)
}

// withoutValues returns why arguments are invalid, without values that the record does not show.
func withoutValues(e *fleet.CallError, shown json.RawMessage) *fleet.CallError {
	if e == nil {
		return nil
	}
	clean := *e
	clean.Params = maps.Clone(e.Params)
	for _, name := range []string{"given", "detail", "cause"} {
		if _, has := clean.Params[name]; has {
			clean.Params[name] = "…"
		}
	}
	if argument, ok := clean.Params["argument"].(string); ok && clean.Params["given"] != nil {
		var given map[string]json.RawMessage
		if json.Unmarshal(shown, &given) == nil && given[argument] != nil {
			clean.Params["given"] = string(given[argument])
		}
	}
	return &clean
}
