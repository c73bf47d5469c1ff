package record

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	cosignature "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

const proofHeader = "c2sp.org/tlog-proof@v1"

// A Proof shows that the log contains an entry: C2SP tlog-proof. Its extra data is the line of the entry, so
// the file is sufficient to check it.
type Proof struct {
	Line       []byte
	Index      int64 // number of the entry
	Path       tlog.RecordProof
	Checkpoint string // the signed text
}

// Format returns the proof as the text of a file.
func (p Proof) Format() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\nextra %s\nindex %d\n", proofHeader, base64.StdEncoding.EncodeToString(p.Line), p.Index)
	for _, h := range p.Path {
		b.WriteString(h.String() + "\n")
	}
	b.WriteString("\n" + p.Checkpoint)
	return []byte(b.String())
}

var errProof = errors.New("not a proof of an entry")

// maxProof bounds the size of a proof's file.
const maxProof = 1 << 20

// ParseProof reads the text of a file. It checks nothing: see [Proof.Check].
func ParseProof(text []byte) (p Proof, err error) {
	if len(text) > maxProof {
		return p, errProof
	}
	head, checkpoint, found := strings.Cut(string(text), "\n\n")
	lines := strings.Split(head, "\n")
	if !found || lines[0] != proofHeader {
		return p, fmt.Errorf("%w: the first line is not %q", errProof, proofHeader)
	}
	lines = lines[1:]
	if len(lines) > 0 && strings.HasPrefix(lines[0], "extra ") {
		if p.Line, err = base64.StdEncoding.DecodeString(lines[0][len("extra "):]); err != nil {
			return p, fmt.Errorf("%w: extra data: %w", errProof, err)
		}
		lines = lines[1:]
	}
	if len(lines) == 0 || !strings.HasPrefix(lines[0], "index ") {
		return p, fmt.Errorf("%w: no index", errProof)
	}
	if p.Index, err = strconv.ParseInt(lines[0][len("index "):], 10, 64); err != nil || p.Index < 0 {
		return p, fmt.Errorf("%w: index", errProof)
	}
	for _, line := range lines[1:] {
		h, err := tlog.ParseHash(line)
		if err != nil {
			return p, fmt.Errorf("%w: hash %d", errProof, len(p.Path))
		}
		p.Path = append(p.Path, h)
	}
	p.Checkpoint = checkpoint
	return p, nil
}

// A Cosignature is the signature of a witness under a checkpoint.
type Cosignature struct {
	Witness string // its name
	At      time.Time
}

// Cosignatures returns the signatures of the witnesses with these public keys. One that is missing is an error.
func (c Checkpoint) Cosignatures(keys ...string) (list []Cosignature, err error) {
	for _, key := range keys {
		v, err := cosignature.NewVerifierForCosignatureV1(strings.TrimSpace(key))
		if err != nil {
			return nil, fmt.Errorf("the public key of the witness %q: %w", key, err)
		}
		n, err := note.Open([]byte(c.Note), note.VerifierList(v))
		if err != nil {
			return nil, fmt.Errorf("the checkpoint of %d entries has no signature of the witness %s: %w", c.Size, v.Name(), err)
		}
		at, err := cosignature.CoSigV1Timestamp(n.Sigs[0])
		if err != nil {
			return nil, fmt.Errorf("signature of the witness %s: %w", v.Name(), err)
		}
		list = append(list, Cosignature{v.Name(), at.UTC()})
	}
	return list, nil
}

// Check checks the proof with one of the public keys, and returns the checkpoint.
func (p Proof) Check(verifiers ...string) (Checkpoint, error) {
	c, err := ParseCheckpoint(p.Checkpoint, verifiers...)
	if err != nil {
		return c, err
	}
	if err := tlog.CheckRecord(p.Path, c.Size, c.Root, p.Index, tlog.RecordHash(p.Line)); err != nil {
		return c, fmt.Errorf("entry %d does not match the checkpoint of %d entries: %w", p.Index, c.Size, err)
	}
	return c, nil
}
