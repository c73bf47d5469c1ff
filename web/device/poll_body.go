package device

import (
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/redact"
)

// Limits of a boot poll's body. A stock device sends about 2 KB.
const (
	maxPollBody  = 64 << 10
	maxFacts     = 16 << 10 // larger bodies are read, but not stored
	maxDepth     = 12
	maxFactText  = 512
	maxShortText = 64
)

// readPoll collects the device's report from its boot poll. It returns no error: if the body is
// unreadable, it uses the headers alone.
func readPoll(r *http.Request, id fleet.DeviceID, addr string, at time.Time) enrolment.BootPoll {
	h := r.Header
	p := enrolment.BootPoll{Device: id, RemoteAddr: addr, At: at,
		ClientID:     strings.TrimSpace(h.Get("Client-Id")),
		SerialNumber: short(h.Get("Serial-Number")),
		Proof: enrolment.KeyProof{Key: h.Get("Device-Key"), Challenge: h.Get("Device-Key-Challenge"),
			Signature: h.Get("Device-Key-Signature")},
		UserAgent: fleet.CleanText(h.Get("User-Agent"), 200),
		Language:  fleet.CleanText(h.Get("Accept-Language"), 35),
	}
	facts, text, whole := readFacts(r.Body)
	p.Facts, p.Broken = text, !whole
	p.BoardType, p.Board = facts.text("board", "type"), facts.text("board", "name")
	p.Chip = facts.text("chip_model_name")
	p.Version = facts.text("application", "version")
	p.ELFSHA256 = hexHash(facts.text("application", "elf_sha256"))
	p.IDFVersion = facts.text("application", "idf_version")
	p.Slot = facts.text("ota", "label")
	p.BodyMAC = facts.text("mac_address")
	p.Layout = facts.layout()
	if p.Broken {
		p.Salvaged = salvaged(&p)
	}
	fromUserAgent(&p)
	return p
}

// salvaged lists the fields of the device that a truncated body contained.
func salvaged(p *enrolment.BootPoll) (fields []fleet.PollField) {
	for _, f := range []struct {
		field fleet.PollField
		found bool
	}{
		{enrolment.PollChip, p.Chip != ""}, {enrolment.PollVersion, p.Version != ""},
		{enrolment.PollBuild, p.ELFSHA256 != ""},
		{enrolment.PollPartitions, p.Layout != nil}, {enrolment.PollSlot, p.Slot != ""}, {enrolment.PollBoard, p.Board != ""},
	} {
		if f.found {
			fields = append(fields, f.field)
		}
	}
	return fields
}

// fromUserAgent fills in board and version from "<board>/<version>".
func fromUserAgent(p *enrolment.BootPoll) {
	i := strings.LastIndexByte(p.UserAgent, '/')
	if i < 0 {
		return
	}
	if p.Board == "" {
		p.Board = short(p.UserAgent[:i])
	}
	if p.Version == "" {
		p.Version = short(p.UserAgent[i+1:])
	}
}

func short(s string) string { return strings.TrimSpace(fleet.CleanText(s, maxShortText)) }

var hashPattern = regexp.MustCompile(`^[0-9a-f]{8,64}$`)

// hexHash returns s if it can be the hash of a build, or "": an unreadable hash identifies nothing.
func hexHash(s string) string {
	if s = strings.ToLower(s); !hashPattern.MatchString(s) {
		return ""
	}
	return s
}

// facts is a decoded body. Any member can be missing or of any type.
type facts map[string]any

// readFacts returns the decoded body, and its text for storage. whole reports whether all of it was
// readable; otherwise f has the readable members, if any.
func readFacts(body io.Reader) (f facts, text json.RawMessage, whole bool) {
	raw, err := io.ReadAll(io.LimitReader(body, maxPollBody+1))
	if err != nil || len(raw) > maxPollBody {
		return nil, nil, false
	}
	f, whole = parseBody(raw)
	if f == nil {
		return nil, nil, whole
	}
	clean, _ := cleanValue(map[string]any(f), 0).(map[string]any)
	if _, named := clean["uuid"]; named {
		clean["uuid"] = redact.Mark // the Client-Id is a secret; see redact
	}
	if text, err = json.Marshal(clean); err != nil || len(text) > maxFacts {
		text = nil
	}
	return clean, text, whole
}

// cleanValue makes a decoded value valid for PostgreSQL's jsonb: text without NUL and broken UTF-8,
// numbers within its range, limited nesting.
func cleanValue(v any, depth int) any {
	if depth > maxDepth {
		return nil
	}
	switch v := v.(type) {
	case string:
		return fleet.CleanText(v, maxFactText)
	case json.Number:
		if len(v) > 20 || strings.ContainsAny(string(v), "eE") {
			return string(v[:min(len(v), maxShortText)])
		}
		return v
	case []any:
		for i := range v {
			v[i] = cleanValue(v[i], depth+1)
		}
		return v
	case map[string]any:
		for key, value := range v {
			clean := fleet.CleanText(key, maxShortText)
			if clean != key {
				delete(v, key)
			}
			v[clean] = cleanValue(value, depth+1)
		}
		return v
	}
	return v
}

// text returns the string at the path, or "".
func (f facts) text(path ...string) string {
	var v any = map[string]any(f)
	for _, key := range path {
		m, _ := v.(map[string]any)
		v = m[key]
	}
	s, _ := v.(string)
	return short(s)
}
