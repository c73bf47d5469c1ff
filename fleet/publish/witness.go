package publish

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	cosignature "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"fleetd/fleet/record"
)

// A witness signs a checkpoint after it has checked that it continues the one that it signed before.
type witness struct {
	p        *Publisher
	key      string // public key, as C2SP tlog-cosignature writes it
	verifier note.Verifier
	address  string // of add-checkpoint
}

// witness returns the destination of a text "KEY URL".
func (p *Publisher) witness(text string) (*destination, error) {
	key, address, _ := strings.Cut(strings.TrimSpace(text), " ")
	u, err := url.Parse(strings.TrimSpace(address))
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New(`a witness is written as "KEY URL", with the public key and the address that its operator published`)
	}
	verifier, err := cosignature.NewVerifierForCosignatureV1(key)
	if err != nil {
		return nil, fmt.Errorf("the public key of a witness: %w", err)
	}
	w := &witness{p: p, key: key, verifier: verifier, address: strings.TrimSuffix(u.String(), "/") + "/add-checkpoint"}
	return &destination{kind: Witness, to: verifier.Name(), send: w.send}, nil
}

// A statusError is an answer of HTTP whose status is no success.
type statusError struct {
	refusal
	status int
}

func (e *statusError) Unwrap() error { return &e.refusal }

// witnessReasons are the refusals that C2SP tlog-witness defines.
var witnessReasons = map[int]string{
	http.StatusNotFound:            "witness_unknown_log",
	http.StatusForbidden:           "witness_unknown_key",
	http.StatusUnprocessableEntity: "witness_inconsistent",
}

func (w *witness) send(ctx context.Context, c record.Checkpoint) error {
	old, err := w.p.o.Store.CosignedSize(ctx, w.key)
	if err != nil {
		return err
	}
	for range 2 { // the second time with the size that the witness says it has
		if old > c.Size {
			return refuse("witness_ahead", "size", old, "entries", c.Size)
		}
		text, err := w.request(ctx, c, old)
		if err != nil {
			return err
		}
		body, err := w.p.post(ctx, w.address, text)
		var answer *statusError
		switch {
		case err == nil:
			return w.keep(ctx, c, body)
		case !errors.As(err, &answer):
			return err
		case answer.status == http.StatusConflict:
			if old, err = strconv.ParseInt(strings.TrimSpace(string(body)), 10, 64); err != nil || old < 0 {
				return answer
			}
		case witnessReasons[answer.status] != "":
			return refuse(witnessReasons[answer.status])
		default:
			return answer
		}
	}
	return refuse("checkpoint_status", "status", http.StatusConflict)
}

// request returns the body of add-checkpoint: the size that the witness knows, the proof that the tree continues it,
// and the checkpoint.
func (w *witness) request(ctx context.Context, c record.Checkpoint, old int64) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "old %d\n", old)
	if old > 0 && old < c.Size {
		proof, err := tlog.ProveTree(c.Size, old, w.p.o.Store.RecordHashes(ctx, tlog.Tree{N: c.Size, Hash: c.Root}))
		if err != nil {
			return "", fmt.Errorf("prove that %d entries continue %d: %w", c.Size, old, err)
		}
		for _, h := range proof {
			b.WriteString(base64.StdEncoding.EncodeToString(h[:]) + "\n")
		}
	}
	b.WriteString("\n" + c.Note)
	return b.String(), nil
}

// keep stores the checkpoint with the signature of the witness, and nothing else that it answered.
func (w *witness) keep(ctx context.Context, c record.Checkpoint, lines []byte) error {
	n, err := note.Open(append([]byte(c.Note), lines...), note.VerifierList(w.verifier))
	if err != nil {
		return refuse("witness_bad_signature")
	}
	at, err := cosignature.CoSigV1Timestamp(n.Sigs[0])
	if err != nil {
		return refuse("witness_bad_signature")
	}
	c.Note += "— " + n.Sigs[0].Name + " " + n.Sigs[0].Base64 + "\n"
	return w.p.o.Store.StoreCosignature(ctx, w.key, c, at)
}
