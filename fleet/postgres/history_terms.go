package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"fleetd/fleet"
)

// The parts of a device that a term may be about have tables of their own, which are much smaller than the states.
// Each is selected with the columns of devices that it has; a search, which is about all of them, needs the others to
// be empty.
const (
	termProfiles = `SELECT key FROM (SELECT id AS key, '' AS id, '' AS name_key, '' AS tags_key, board_key, chip, kind, version,
		version_key, enrolment, inventory_id, in_service FROM device_profiles) devices`
	termTagSets = `SELECT key FROM (SELECT id AS key, '' AS id, '' AS name_key, '' AS board_key, tags_key FROM device_tag_sets) devices`
	termNames   = `SELECT key FROM (SELECT number AS key, device_id AS id, name_key, '' AS board_key, '' AS tags_key FROM device_names
		WHERE begun_at <= $1 AND ended_at > $1) devices`
	termHolds = `SELECT key FROM (SELECT number AS key, hold_since, hold_until FROM device_states
		WHERE hold_since IS NOT NULL AND begun_at <= $1 AND ended_at > $1) devices`
)

var notRetired = fleet.Term{Field: "retired", Not: true}

// A pastTerm is a term with the ids that it matches: profiles, sets of tags and numbers of devices.
type pastTerm struct {
	not                     bool
	profiles, tags, numbers byNumber[byte]
	presences               [8]bool
}

func (t *pastTerm) matches(c *fleetColumns, number int) bool {
	return t.not != (t.profiles.at(int(c.profiles[number])) != 0 || t.tags.at(int(c.tags.at(number))) != 0 ||
		t.numbers.at(number) != 0 || t.presences[c.presence.at(number)])
}

// matching returns all devices of a moment, and which of them match a query and exist for the principal: what a device
// is now decides about that.
func (s *Store) matching(ctx context.Context, at time.Time, q fleet.Query) (*fleetColumns, deviceBits, error) {
	terms := q.Terms
	if !q.Asks("retired") {
		terms = append([]fleet.Term{notRetired}, terms...)
	}
	var c *fleetColumns
	var tests []pastTerm
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() (err error) { c, err = s.fleetAsOf(ctx, at); return err })
	parts.Go(func() (err error) { tests, err = s.pastTerms(ctx, at, terms); return err })
	if err := parts.Wait(); err != nil {
		return nil, nil, err
	}
	return c, c.matching(tests), nil
}

// pastTerms looks up what terms, and the scope of the principal, match at a moment.
func (s *Store) pastTerms(ctx context.Context, at time.Time, terms []fleet.Term) ([]pastTerm, error) {
	var b pgx.Batch
	tests := make([]pastTerm, len(terms), len(terms)+1)
	for i, t := range terms {
		tests[i].not = t.Not
		tests[i].queue(&b, t, at)
	}
	var scope where
	if in := scope.devicesInScope(ctx); in != "" {
		tests = append(tests, pastTerm{})
		queueKeys(&b, &tests[len(tests)-1].numbers,
			`SELECT number FROM device_names WHERE ended_at = 'infinity' AND device_id IN `+in, scope.args)
	}
	if err := s.db.SendBatch(ctx, &b).Close(); err != nil {
		return nil, fmt.Errorf("devices as of %s: %w", at, domainError(err))
	}
	return tests, nil
}

// matching returns the devices that all terms match.
func (c *fleetColumns) matching(terms []pastTerm) deviceBits {
	bits := newDeviceBits(len(c.profiles))
devices:
	for n, profile := range c.profiles {
		if profile == 0 {
			continue
		}
		for i := range terms {
			if !terms[i].matches(c, n) {
				continue devices
			}
		}
		bits.add(n)
	}
	return bits
}

// queue adds the queries for the ids that match a term.
func (p *pastTerm) queue(b *pgx.Batch, t fleet.Term, at time.Time) {
	add := func(to *byNumber[byte], sql string) {
		var w where
		if sql == termNames || sql == termHolds {
			w.arg(at)
		}
		w.and(w.term(t, at))
		queueKeys(b, to, sql+w.String(), w.args)
	}
	switch t.Field {
	case "presence":
		one := fleet.Query{Terms: []fleet.Term{t}}
		for i, presence := range framePresences {
			_, ok := one.Match(fleet.Device{Presence: presence}, nil, at)
			p.presences[i] = ok != t.Not
		}
	case "hold":
		add(&p.numbers, termHolds)
	case "id", "name":
		add(&p.numbers, termNames)
	case "tag":
		add(&p.tags, termTagSets)
	case "":
		add(&p.numbers, termNames)
		add(&p.profiles, termProfiles)
		add(&p.tags, termTagSets)
	default:
		add(&p.profiles, termProfiles)
	}
}

// queueKeys adds a query for ids, and sets them in a column.
func queueKeys(b *pgx.Batch, to *byNumber[byte], sql string, args []any) {
	queueEach(b, func(r struct{ Key int32 }) { to.set(r.Key, 1) }, sql, args...)
}
