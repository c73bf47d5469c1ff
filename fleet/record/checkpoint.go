package record

import (
	"crypto/ed25519"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// A SigningKey signs checkpoints.
type SigningKey struct {
	Origin   string // name of the log; all its keys have the same name
	Verifier string // the public key, in the form of package note
	signer   note.Signer
}

// keyUse separates this key from the other ones that are derived from the secret key.
const keyUse = "fleetd record v1"

// NewOrigin returns the name of a new log that is first signed with the secret key.
func NewOrigin(secret []byte) (string, error) {
	id, err := hkdf.Key(sha256.New, secret, nil, keyUse+" name", 8)
	return "fleetd/" + hex.EncodeToString(id), err
}

// NewSigningKey derives the key of a log from the secret key. All cores of a cluster have the same one.
func NewSigningKey(secret []byte, origin string) (*SigningKey, error) {
	seed, err := hkdf.Key(sha256.New, secret, nil, keyUse, ed25519.SeedSize)
	if err != nil {
		return nil, fmt.Errorf("key of the record: %w", err)
	}
	const ed25519Note = 1 // algorithm number of package note
	public := ed25519.NewKeyFromSeed(seed).Public().(ed25519.PublicKey)
	verifier, err := note.NewEd25519VerifierKey(origin, public)
	if err != nil {
		return nil, fmt.Errorf("key of the record: %w", err)
	}
	hash, _, _ := strings.Cut(strings.TrimPrefix(verifier, origin+"+"), "+")
	signer, err := note.NewSigner("PRIVATE+KEY+" + origin + "+" + hash + "+" +
		base64.StdEncoding.EncodeToString(append([]byte{ed25519Note}, seed...)))
	if err != nil {
		return nil, fmt.Errorf("key of the record: %w", err)
	}
	return &SigningKey{Origin: origin, Verifier: verifier, signer: signer}, nil
}

// A Checkpoint is the signed state of the log.
type Checkpoint struct {
	Size int64
	Root tlog.Hash
	At   time.Time
	Term int    // of the leader that signed it
	Note string // the signed text: C2SP tlog-checkpoint
}

// Sign returns the checkpoint of a tree. The time and the term are extension lines.
func (k *SigningKey) Sign(size int64, root tlog.Hash, at time.Time, term int) (Checkpoint, error) {
	at = at.UTC().Truncate(time.Microsecond)
	text := fmt.Sprintf("%s\n%d\n%s\ntime %s\nterm %d\n", k.Origin, size, root, at.Format(time.RFC3339Nano), term)
	signed, err := note.Sign(&note.Note{Text: text}, k.signer)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("sign the checkpoint of %d entries: %w", size, err)
	}
	return Checkpoint{Size: size, Root: root, At: at, Term: term, Note: string(signed)}, nil
}

var errCheckpoint = errors.New("not a checkpoint of this log")

// ParseCheckpoint checks the signature of a checkpoint with one of the public keys, and reads it.
func ParseCheckpoint(signed string, verifiers ...string) (Checkpoint, error) {
	var known []note.Verifier
	for _, text := range verifiers {
		v, err := note.NewVerifier(strings.TrimSpace(text))
		if err != nil {
			return Checkpoint{}, fmt.Errorf("the public key %q: %w", text, err)
		}
		known = append(known, v)
	}
	n, err := note.Open([]byte(signed), note.VerifierList(known...))
	if err != nil {
		return Checkpoint{}, fmt.Errorf("signature of the checkpoint: %w", err)
	}
	lines := strings.Split(strings.TrimSuffix(n.Text, "\n"), "\n")
	if len(lines) < 3 || lines[0] != n.Sigs[0].Name {
		return Checkpoint{}, errCheckpoint
	}
	c := Checkpoint{Note: signed}
	if c.Size, err = strconv.ParseInt(lines[1], 10, 64); err != nil || c.Size < 0 {
		return Checkpoint{}, errCheckpoint
	}
	if c.Root, err = tlog.ParseHash(lines[2]); err != nil {
		return Checkpoint{}, errCheckpoint
	}
	for _, line := range lines[3:] { // other logs may have other extensions
		name, value, _ := strings.Cut(line, " ")
		switch name {
		case "time":
			c.At, _ = time.Parse(time.RFC3339Nano, value)
		case "term":
			c.Term, _ = strconv.Atoi(value)
		}
	}
	return c, nil
}

// Origin returns the name of the log in a public key.
func Origin(verifier string) string {
	name, _, _ := strings.Cut(verifier, "+")
	return name
}
