package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// MaxLine is the maximum length of a line: tlog-tiles stores its length in 16 bits.
const MaxLine = 1<<16 - 1

// A longer value is replaced by its SHA-256 in the line: arguments and results of a call may be large.
const (
	maxRaw  = 8 << 10
	maxText = 4 << 10
)

// A Who is the principal in a line.
type Who struct{ Kind, ID, Name, Role string }

// A CallRow contains what the line of a call is made of. JSON is in the stored form; nil means null.
type CallRow struct {
	ID               uuid.UUID
	CreatedAt        time.Time
	Device, Tool     string
	Arguments        *string
	Actor            Who
	FanOut, Approval uuid.UUID // may be zero
	State            string
	Result           *string
	ErrorCode        *string
	ErrorMessage     *string
	ErrorParams      *string
	Evidence         *string
	RPCID            int32
	TimeoutMs        int64
	SentAt           *time.Time
	FinishedAt       *time.Time
}

// Leaf returns the leaf of the call.
func (r *CallRow) Leaf() Leaf { return NewLeaf(Call, string(r.ID[:]), r.CreatedAt, r.Line()) }

// Line returns the line of the call.
func (r *CallRow) Line() []byte {
	w := begin(Call, 512)
	w.id("id", r.ID)
	w.time("created_at", &r.CreatedAt)
	w.text("device_id", r.Device)
	w.text("tool", r.Tool)
	w.json("arguments", r.Arguments)
	w.who(r.Actor)
	w.id("fanout_id", r.FanOut)
	w.id("approval_id", r.Approval)
	w.text("state", r.State)
	w.json("result", r.Result)
	w.optional("error_code", r.ErrorCode)
	w.optional("error_message", r.ErrorMessage)
	w.json("error_params", r.ErrorParams)
	w.json("evidence", r.Evidence)
	w.number("rpc_id", int64(r.RPCID))
	w.number("timeout_ms", r.TimeoutMs)
	w.time("sent_at", r.SentAt)
	w.time("finished_at", r.FinishedAt)
	return w.end()
}

// A LateRow is a late answer to a call.
type LateRow struct {
	Call      uuid.UUID
	CreatedAt time.Time // of the call
	Late      string    // JSON, in the stored form
}

// Leaf returns the leaf of the answer.
func (r *LateRow) Leaf() Leaf { return NewLeaf(LateAnswer, string(r.Call[:]), r.CreatedAt, r.Line()) }

// Line returns the line of the answer.
func (r *LateRow) Line() []byte {
	w := begin(LateAnswer, 256)
	w.id("call_id", r.Call)
	w.time("created_at", &r.CreatedAt)
	w.json("late", &r.Late)
	return w.end()
}

// An ActionRow is an audit entry.
type ActionRow struct {
	ID        uuid.UUID
	CreatedAt time.Time
	Actor     Who
	Action    string
	Subject   string
	Detail    string // JSON; any form of the same values makes the same line
}

// Leaf returns the leaf of the entry.
func (r *ActionRow) Leaf() Leaf { return NewLeaf(Action, string(r.ID[:]), r.CreatedAt, r.Line()) }

// Line returns the line of the entry.
func (r *ActionRow) Line() []byte {
	w := begin(Action, 384)
	w.id("id", r.ID)
	w.time("created_at", &r.CreatedAt)
	w.who(r.Actor)
	w.text("action", r.Action)
	w.text("subject", r.Subject)
	w.canonical("detail", &r.Detail)
	return w.end()
}

// Rowless returns the leaf of an entry that has no row: [Forgotten] with the id of a device, [Dropped] with the name
// of a kind, or [Started].
func Rowless(k Kind, ref string, at time.Time) Leaf {
	return NewLeaf(k, ref, at, RowlessLine(k, ref, at))
}

// RowlessLine returns the line of an entry that has no row.
func RowlessLine(k Kind, ref string, at time.Time) []byte {
	w := begin(k, 128)
	w.text("ref", ref)
	w.time("at", &at)
	return w.end()
}

// A liner writes a line. Equal columns make equal bytes, in every version of fleetd and of Go, therefore it
// encodes text itself.
type liner struct{ b []byte }

func begin(k Kind, size int) *liner {
	w := &liner{make([]byte, 0, size)}
	w.b = append(append(append(w.b, `{"entry":"`...), k.String()...), '"')
	return w
}

func (w *liner) end() []byte { return append(w.b, '}') }

func (w *liner) name(name string) { w.b = append(append(append(w.b, `,"`...), name...), `":`...) }

// digest writes the hash of a value instead of the value.
func (w *liner) digest(name, value string) {
	sum := sha256.Sum256([]byte(value))
	w.name(name + "_sha256")
	w.b = append(hex.AppendEncode(append(w.b, '"'), sum[:]), '"')
}

func (w *liner) text(name, value string) {
	if len(value) > maxText {
		w.digest(name, value)
		return
	}
	w.name(name)
	w.b = appendQuoted(w.b, value)
}

func (w *liner) optional(name string, value *string) {
	if value != nil {
		w.text(name, *value)
	}
}

func (w *liner) number(name string, n int64) {
	w.name(name)
	w.b = strconv.AppendInt(w.b, n, 10)
}

// id writes an id unless it is zero.
func (w *liner) id(name string, id uuid.UUID) {
	if id == uuid.Nil {
		return
	}
	w.name(name)
	w.b = append(w.b, '"')
	text, _ := id.MarshalText() // cannot fail
	w.b = append(append(w.b, text...), '"')
}

// time writes microseconds, because the database stores no more.
func (w *liner) time(name string, t *time.Time) {
	if t == nil {
		return
	}
	w.name(name)
	w.b = time.UnixMicro(t.UnixMicro()).UTC().AppendFormat(append(w.b, '"'), "2006-01-02T15:04:05.000000Z")
	w.b = append(w.b, '"')
}

func (w *liner) who(p Who) {
	w.text("actor_kind", p.Kind)
	w.text("actor_id", p.ID)
	w.text("actor_name", p.Name)
	w.text("actor_role", p.Role)
}

// json writes JSON as it is stored. A value with a line break would not fit on the line.
func (w *liner) json(name string, value *string) {
	switch {
	case value == nil:
	case len(*value) > maxRaw || bytes.ContainsAny([]byte(*value), "\n\r"):
		w.digest(name, *value)
	default:
		w.name(name)
		w.b = append(w.b, *value...)
	}
}

// canonical writes JSON in the canonical form: PostgreSQL changes the form of a jsonb value.
func (w *liner) canonical(name string, value *string) {
	if value == nil {
		return
	}
	text := Canonical(*value)
	w.json(name, &text)
}

const hexDigits = "0123456789abcdef"

// appendQuoted appends a JSON string in which only quotes, backslashes and control characters are escaped.
func appendQuoted(b []byte, s string) []byte {
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' {
			b = append(b, s[from:i]...)
			if c < ' ' {
				b = append(b, `\u00`...)
				b = append(b, hexDigits[c>>4], hexDigits[c&15])
			} else {
				b = append(b, '\\', c)
			}
			from = i + 1
		}
	}
	return append(append(b, s[from:]...), '"')
}

// Canonical returns the canonical form of JSON: keys sorted, no spaces, numbers without exponents where that is
// exact. Text that is not JSON becomes a JSON string.
func Canonical(text string) string {
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil || d.More() || !utf8.ValidString(text) {
		return string(appendQuoted(nil, text))
	}
	return string(appendValue(nil, v))
}
