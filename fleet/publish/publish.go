// Package publish copies the signed checkpoints of the sealed record (package record) to places outside of the
// database: directories, buckets of S3, webhooks, and witnesses. A witness checks that each checkpoint continues the
// previous one, and then signs it (C2SP tlog-witness). Somebody who replaces the log in the database cannot change
// these copies.
//
// [Publisher.Run] runs in the leading process, with a goroutine for each destination. The package uses no SQL.
package publish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"fleetd/fleet"
	"fleetd/fleet/outbound"
	"fleetd/fleet/record"
)

// Kind is the kind of a destination.
type Kind string

// The kinds.
const (
	Directory Kind = "directory"
	Bucket    Kind = "s3"
	Webhook   Kind = "webhook"
	Witness   Kind = "witness"
)

// A Store has the checkpoints of the log.
type Store interface {
	LatestCheckpoint(ctx context.Context) (record.Checkpoint, error)
	RecordHashes(ctx context.Context, tree tlog.Tree) tlog.HashReader
	// CosignedSize returns the size of the latest checkpoint that the witness signed, 0 before the first.
	CosignedSize(ctx context.Context, witness string) (int64, error)
	// StoreCosignature keeps the latest checkpoint that a witness signed.
	StoreCosignature(ctx context.Context, witness string, c record.Checkpoint, at time.Time) error
}

// Options configures a [Publisher].
type Options struct {
	Store Store
	// To are addresses: file:///directory, s3://bucket/prefix, or http(s) for a webhook.
	To []string
	// Witnesses are texts of the form "KEY URL".
	Witnesses []string
	// Every is the pause between two checkpoints of a destination. It gets none while the log does not grow.
	Every time.Duration
	// Open opens a directory or a bucket.
	Open  func(ctx context.Context, address string) (Place, error)
	Guard *outbound.Guard
	Log   *slog.Logger
}

// A Place keeps objects under names.
type Place interface {
	Put(ctx context.Context, name string, data []byte) error
}

// A State is how a destination is doing.
type State struct {
	Kind  Kind
	To    string    // a name without secrets: host, bucket or directory
	Size  int64     // entries of the latest checkpoint that it has; 0: none since this process started
	At    time.Time // when it got it
	Why   fleet.Reason
	Since time.Time // of the first failure after the last success; zero if the last attempt succeeded
}

// A destination is one place, with the state of this process.
type destination struct {
	kind Kind
	to   string
	// send returns nil when the place has the checkpoint.
	send func(ctx context.Context, c record.Checkpoint) error

	mu    sync.Mutex
	state State
}

// A Publisher copies checkpoints.
type Publisher struct {
	o      Options
	client *http.Client
	all    []*destination
}

// New returns a publisher. It refuses addresses that it cannot understand, and opens nothing.
func New(o Options) (*Publisher, error) {
	p := &Publisher{o: o, client: client(o.Guard)}
	for _, address := range o.To {
		d, err := p.plain(address)
		if err != nil {
			return nil, err
		}
		p.all = append(p.all, d)
	}
	for _, text := range o.Witnesses {
		w, err := p.witness(text)
		if err != nil {
			return nil, err
		}
		p.all = append(p.all, w)
	}
	for _, d := range p.all {
		d.state = State{Kind: d.kind, To: d.to}
	}
	return p, nil
}

const addressForm = "use file:///directory, s3://bucket/prefix or https://host/path"

// plain returns the destination of an address. Errors do not repeat it, because it may contain a secret.
func (p *Publisher) plain(address string) (*destination, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("an address for checkpoints cannot be read; " + addressForm)
	}
	switch u.Scheme {
	case "file":
		return &destination{kind: Directory, to: u.Path, send: p.objects(address)}, nil
	case "s3":
		return &destination{kind: Bucket, to: u.Host + u.Path, send: p.objects(address)}, nil
	case "http", "https":
		if u.Host == "" {
			break
		}
		return &destination{kind: Webhook, to: u.Scheme + "://" + u.Host, send: func(ctx context.Context, c record.Checkpoint) error {
			_, err := p.post(ctx, address, c.Note)
			return err
		}}, nil
	}
	return nil, errors.New("an address for checkpoints has an unknown form; " + addressForm)
}

// States returns the states of all destinations; nil has none.
func (p *Publisher) States() []State {
	if p == nil {
		return nil
	}
	list := make([]State, len(p.all))
	for i, d := range p.all {
		d.mu.Lock()
		list[i] = d.state
		d.mu.Unlock()
	}
	return list
}

// Run publishes until ctx ends.
func (p *Publisher) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, d := range p.all {
		all.Go(func() { p.serve(ctx, d) })
	}
	<-ctx.Done() // also without a destination
	all.Wait()
	return nil
}

// firstPause is the pause after the first failure; each further one doubles it, up to Options.Every.
const firstPause = 5 * time.Second

// sendTimeout bounds one attempt.
const sendTimeout = time.Minute

func (p *Publisher) serve(ctx context.Context, d *destination) {
	// The log of a fresh start has no entry for a moment.
	const begin = 2 * time.Second
	pause := time.NewTimer(min(begin, p.o.Every))
	defer pause.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		err := p.publish(ctx, d)
		if ctx.Err() != nil {
			return
		}
		wait := p.o.Every
		if err != nil {
			wait = min(p.o.Every, firstPause<<min(failures, 16))
			if failures++; failures == 1 {
				p.o.Log.Error("cannot publish a checkpoint of the record", "kind", d.kind, "to", d.to, "err", err)
			}
		} else {
			failures = 0
		}
		pause.Reset(wait)
	}
}

// publish sends the latest checkpoint, unless the destination has it.
func (p *Publisher) publish(ctx context.Context, d *destination) error {
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	c, err := p.o.Store.LatestCheckpoint(ctx)
	if err == nil && (c.Size == 0 || c.Size == d.state.Size) { // only this goroutine writes the state
		return nil
	}
	if err == nil {
		err = d.send(ctx, c)
	}
	now := time.Now().UTC()
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.state.Why, d.state.Since = reasonOf(err), cmp.Or(d.state.Since, now)
		return err
	}
	d.state = State{Kind: d.kind, To: d.to, Size: c.Size, At: now}
	return nil
}

// A refusal is the answer of a destination that did not take a checkpoint.
type refusal struct{ reason fleet.Reason }

func (r *refusal) Error() string {
	return strings.TrimSpace(fmt.Sprintf("%s %v", r.reason.Code, r.reason.Params))
}

func refuse(code string, params ...any) error { return &refusal{fleet.Because(code, params...)} }

// reasonOf returns the reason of a failure, without addresses, which may contain secrets.
func reasonOf(err error) fleet.Reason {
	var r *refusal
	if errors.As(err, &r) {
		return r.reason
	}
	return fleet.Because("checkpoint_unreachable")
}
