package record

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
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

// A From is where the request came from, in a line; see package origin.
type From struct {
	Address, Client string
	Trace           uuid.UUID // trace id; zero: none
}

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
	Origin           From
}

// Leaf returns the leaf of the call.
func (r *CallRow) Leaf() Leaf { return leafOf(Call, string(r.ID[:]), r.CreatedAt, r) }

// Line returns the line of the call.
func (r *CallRow) Line() []byte { return lineOf(Call, r) }

func (r *CallRow) write(w *liner) {
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
	w.origin(r.Origin)
}

// A LateRow is a late answer to a call.
type LateRow struct {
	Call      uuid.UUID
	CreatedAt time.Time // of the call
	Late      string    // JSON, in the stored form
}

// Leaf returns the leaf of the answer.
func (r *LateRow) Leaf() Leaf { return leafOf(LateAnswer, string(r.Call[:]), r.CreatedAt, r) }

// Line returns the line of the answer.
func (r *LateRow) Line() []byte { return lineOf(LateAnswer, r) }

func (r *LateRow) write(w *liner) {
	w.id("call_id", r.Call)
	w.time("created_at", &r.CreatedAt)
	w.json("late", &r.Late)
}

// An ActionRow is an audit entry.
type ActionRow struct {
	ID        uuid.UUID
	CreatedAt time.Time
	Actor     Who
	Action    string
	Subject   string
	Detail    string // JSON; any form of the same values makes the same line
	Origin    From
}

// Leaf returns the leaf of the entry.
func (r *ActionRow) Leaf() Leaf { return leafOf(Action, string(r.ID[:]), r.CreatedAt, r) }

// Line returns the line of the entry.
func (r *ActionRow) Line() []byte { return lineOf(Action, r) }

func (r *ActionRow) write(w *liner) {
	w.id("id", r.ID)
	w.time("created_at", &r.CreatedAt)
	w.who(r.Actor)
	w.text("action", r.Action)
	w.text("subject", r.Subject)
	w.canonical("detail", &r.Detail)
	w.origin(r.Origin)
}

// Rowless returns the leaf of an entry that has no row: [Forgotten] with the id of a device, [Dropped] with the name
// of a kind, or [Started].
func Rowless(k Kind, ref string, at time.Time) Leaf {
	return NewLeaf(k, ref, at, RowlessLine(k, ref, at))
}

// RowlessLine returns the line of an entry that has no row.
func RowlessLine(k Kind, ref string, at time.Time) []byte {
	var w liner
	w.begin(k)
	w.text("ref", ref)
	w.time("at", &at)
	return append(w.b, '}')
}

// A liner writes a line. Equal columns make equal bytes, in every version of fleetd and of Go, therefore it
// encodes text itself.
type liner struct{ b []byte }

// liners keeps the memory of lines, because each call makes one.
var liners = sync.Pool{New: func() any { return &liner{make([]byte, 0, 2<<10)} }}

// withLine calls use with the line of a row. The line is valid until use returns.
func withLine(k Kind, row interface{ write(*liner) }, use func(line []byte)) {
	w := liners.Get().(*liner)
	defer liners.Put(w)
	w.b = w.b[:0]
	w.begin(k)
	row.write(w)
	w.b = append(w.b, '}')
	use(w.b)
}

func lineOf(k Kind, row interface{ write(*liner) }) (line []byte) {
	withLine(k, row, func(b []byte) { line = bytes.Clone(b) })
	return line
}

func leafOf(k Kind, ref string, at time.Time, row interface{ write(*liner) }) (leaf Leaf) {
	withLine(k, row, func(line []byte) { leaf = NewLeaf(k, ref, at, line) })
	return leaf
}

func (w *liner) begin(k Kind) {
	w.b = append(append(append(w.b, `{"entry":"`...), k.String()...), '"')
}

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
	w.b = hex.AppendEncode(append(w.b, '"'), id[:4])
	w.b = hex.AppendEncode(append(w.b, '-'), id[4:6])
	w.b = hex.AppendEncode(append(w.b, '-'), id[6:8])
	w.b = hex.AppendEncode(append(w.b, '-'), id[8:10])
	w.b = append(hex.AppendEncode(append(w.b, '-'), id[10:]), '"')
}

// time writes microseconds, because the database stores no more.
func (w *liner) time(name string, t *time.Time) {
	if t == nil {
		return
	}
	w.name(name)
	w.b = append(appendTime(append(w.b, '"'), *t), '"')
}

// appendTime does what AppendFormat does with 2006-01-02T15:04:05.000000Z, in a fifth of the time: a line has up to
// three times.
func appendTime(b []byte, t time.Time) []byte {
	t = time.UnixMicro(t.UnixMicro()).UTC()
	year, month, day := t.Date()
	if year < 0 || year > 9999 {
		return t.AppendFormat(b, "2006-01-02T15:04:05.000000Z")
	}
	hour, minute, second := t.Clock()
	b = append(appendDigits(appendDigits(b, year/100), year%100), '-')
	b = append(appendDigits(b, int(month)), '-')
	b = append(appendDigits(b, day), 'T')
	b = append(appendDigits(b, hour), ':')
	b = append(appendDigits(b, minute), ':')
	b = append(appendDigits(b, second), '.')
	micro := t.Nanosecond() / 1000
	return append(appendDigits(appendDigits(appendDigits(b, micro/10_000), micro/100%100), micro%100), 'Z')
}

// appendDigits appends two digits.
func appendDigits(b []byte, n int) []byte { return append(b, byte('0'+n/10), byte('0'+n%10)) }

func (w *liner) who(p Who) {
	w.text("actor_kind", p.Kind)
	w.text("actor_id", p.ID)
	w.text("actor_name", p.Name)
	w.text("actor_role", p.Role)
}

// origin writes what is known. Rows of before origins were stored have none, and their lines stay as they were.
func (w *liner) origin(o From) {
	if o.Address != "" {
		w.text("address", o.Address)
	}
	if o.Client != "" {
		w.text("client", o.Client)
	}
	w.id("trace_id", o.Trace)
}

// json writes JSON as it is stored. A value with a line break would not fit on the line.
func (w *liner) json(name string, value *string) {
	switch {
	case value == nil:
	case len(*value) > maxRaw || strings.ContainsAny(*value, "\n\r"):
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
