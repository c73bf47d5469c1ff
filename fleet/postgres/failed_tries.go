package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"fleetd/fleet/attempts"
)

var _ attempts.Store = (*Store)(nil)

// FailedTries returns the counts of failed tries that have not recovered.
func (s *Store) FailedTries(ctx context.Context) ([]attempts.Count, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT bound, subject, each_s, tries, extract(epoch FROM now() - at)::float8
		FROM failed_tries
		WHERE at + tries * each_s * interval '1 second' > now()
		ORDER BY at`)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c attempts.Count, err error) {
		var subject []byte
		var each, age float64
		err = row.Scan(&c.Bound, &subject, &each, &c.Tries, &age)
		copy(c.Subject[:], subject)
		c.Each, c.Age = seconds(each), seconds(age)
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("failed tries: %w", domainError(err))
	}
	return all, nil
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// AddFailedTries adds one failed try to each count. It writes them in one order, so that two such
// statements cannot deadlock.
func (s *Store) AddFailedTries(ctx context.Context, counts []attempts.Count) error {
	counts = slices.SortedFunc(slices.Values(counts), func(a, b attempts.Count) int {
		return slices.Compare(append([]byte(a.Bound), a.Subject[:]...), append([]byte(b.Bound), b.Subject[:]...))
	})
	var bounds []string
	var subjects [][]byte
	var each []float64
	for _, c := range counts {
		bounds, subjects, each = append(bounds, c.Bound), append(subjects, c.Subject[:]), append(each, c.Each.Seconds())
	}
	if _, err := s.db.Exec(ctx, `
		INSERT INTO failed_tries AS f (bound, subject, each_s, tries, at)
		SELECT bound, subject, each_s, 1, now()
		FROM unnest($1::text[], $2::bytea[], $3::float8[]) AS n (bound, subject, each_s)
		ON CONFLICT (bound, subject) DO UPDATE SET each_s = excluded.each_s, at = excluded.at,
			tries = greatest(0, f.tries - extract(epoch FROM excluded.at - f.at) / excluded.each_s) + 1`,
		bounds, subjects, each); err != nil {
		return fmt.Errorf("record a failed try: %w", domainError(err))
	}
	return nil
}
