package postgres

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fleetd/fleet"
	"fleetd/fleet/call"
	"fleetd/fleet/webhook"
)

var _ call.ApprovalStore = (*Store)(nil)

// AskForCall stores a call and the approval that it waits for, in one transaction.
func (s *Store) AskForCall(ctx context.Context, c *fleet.Call, a *call.Approval) error {
	w, err := newCallWrite(c, true)
	if err != nil {
		return err
	}
	args, err := s.calls.insertArgs(ctx, s.db, []*callWrite{w})
	if err != nil {
		return fmt.Errorf("%w: %w", fleet.ErrNotStored, domainError(err))
	}
	return s.ask(ctx, a, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, insertCalls, args...); err != nil {
			return err
		}
		return storeDigests(ctx, tx, w)
	})
}

// AskForFanOut stores a fan-out and the approval that it waits for, in one transaction.
func (s *Store) AskForFanOut(ctx context.Context, f *call.FanOut, targets []call.FanOutTarget,
	a *call.Approval) error {
	return s.ask(ctx, a, func(tx pgx.Tx) error { return insertFanOut(ctx, tx, f, targets) })
}

func (s *Store) ask(ctx context.Context, a *call.Approval, subject func(pgx.Tx) error) error {
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		if err := subject(tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO approvals (id, subject, subject_id, digest, asked_kind, asked_id, asked_name, asked_role, asked_line,
				person, purpose, rule, rule_name, policy_version, device_id, query, targets, tool, arguments, picture, created_at,
				expires_at, interrupt, builds, wait_until, state)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19::json, $20, $21, $22,
				$23, $24::json, $25, 'waiting')`,
			a.ID, a.Subject, a.SubjectID, a.Digest[:], a.AskedBy.Kind, cleanText(a.AskedBy.ID), cleanText(a.AskedBy.Name),
			a.AskedBy.Role, append([]string{}, a.AskedLine...), cleanText(a.Person), cleanText(a.Purpose), cleanText(a.Rule),
			cleanText(a.RuleName), a.PolicyVersion, string(a.Device), cleanText(a.Query), a.Targets, cleanText(a.Tool),
			cleanJSON(a.Arguments), a.Picture, a.CreatedAt, a.ExpiresAt,
			a.Interrupt, marshalled(collect(a.Builds, newBuildRow)), a.WaitUntil)
		if err != nil {
			return err
		}
		detail := approvalDetail(*a)
		detail["purpose"], detail["expires_at"] = a.Purpose, a.ExpiresAt
		if err := writeAudit(ctx, tx, a.AskedBy, "approval.request", a.ID.String(), detail); err != nil {
			return err
		}
		return s.publish(ctx, tx, webhook.ApprovalRequested, a.CreatedAt, *a)
	})
	if err == nil {
		return nil
	}
	if certainlyUndone(err) {
		err = fmt.Errorf("%w: %w", fleet.ErrNotStored, domainError(err))
	}
	return fmt.Errorf("ask for the approval of %s %s: %w", a.Subject, a.SubjectID, domainError(err))
}

// approvalDetail returns the detail of an approval's audit entries.
func approvalDetail(a call.Approval) map[string]any {
	d := map[string]any{"subject": a.Subject, "subject_id": a.SubjectID, "tool": a.Tool, "targets": a.Targets,
		"asked_by": a.AskedBy.Name, "rule": a.RuleName, "policy_version": a.PolicyVersion,
		"digest": hex.EncodeToString(a.Digest[:])}
	if a.Device != "" {
		d["device"] = a.Device
	}
	if a.Interrupt {
		d["interrupt"] = true
	}
	if a.WaitUntil != nil {
		d["wait_until"] = a.WaitUntil
	}
	return d
}

const approvalColumns = `id, subject, subject_id, digest, asked_kind, asked_id, asked_name, asked_role, asked_line, person,
	purpose, rule, rule_name, policy_version, device_id, query, targets, tool, arguments, picture, created_at, expires_at,
	state, decided_kind, decided_id, decided_name, decided_role, decided_at, decision_reason, code, interrupt,
	builds, stale, wait_until`

// A buildRow identifies a tool's description and the firmware on devices of an approval.
type buildRow struct {
	Tool    string `json:"tool_sha256"`
	ELF     string `json:"elf_sha256"`
	Version string `json:"version"`
	Devices int    `json:"devices"`
}

func newBuildRow(b call.BuildCount) buildRow {
	return buildRow{hex.EncodeToString(b.Tool[:]), cleanText(b.ELF), cleanText(b.Version), b.Devices}
}

func (r buildRow) count() call.BuildCount {
	b := call.BuildCount{ToolBuild: call.ToolBuild{ELF: r.ELF, Version: r.Version}, Devices: r.Devices}
	_, _ = hex.Decode(b.Tool[:], []byte(r.Tool)) // an invalid digest becomes zero
	return b
}

type approvalRow struct {
	ID             uuid.UUID
	Subject        call.ApprovalSubject
	SubjectID      uuid.UUID
	Digest         []byte
	AskedKind      fleet.PrincipalKind
	AskedID        string
	AskedName      string
	AskedRole      fleet.Role
	AskedLine      []string
	Person         string
	Purpose        string
	Rule           string
	RuleName       string
	PolicyVersion  int64
	DeviceID       fleet.DeviceID
	Query          string
	Targets        int
	Tool           string
	Arguments      []byte
	Picture        string
	CreatedAt      time.Time
	ExpiresAt      time.Time
	State          call.ApprovalState
	DecidedKind    fleet.PrincipalKind
	DecidedID      string
	DecidedName    string
	DecidedRole    fleet.Role
	DecidedAt      *time.Time
	DecisionReason string
	Code           string
	Interrupt      bool
	Builds         []buildRow
	Stale          call.Stale
	WaitUntil      *time.Time
}

func (r approvalRow) approval() call.Approval {
	return call.Approval{ID: r.ID, Subject: r.Subject, SubjectID: r.SubjectID, Digest: [32]byte(r.Digest),
		AskedBy:   fleet.Principal{Kind: r.AskedKind, ID: r.AskedID, Name: r.AskedName, Role: r.AskedRole},
		AskedLine: r.AskedLine, Person: r.Person, Purpose: r.Purpose, Rule: r.Rule, RuleName: r.RuleName,
		PolicyVersion: r.PolicyVersion, Device: r.DeviceID, Query: r.Query, Targets: r.Targets, Tool: r.Tool,
		Arguments: r.Arguments, Picture: r.Picture, CreatedAt: r.CreatedAt, ExpiresAt: r.ExpiresAt, State: r.State,
		DecidedBy: fleet.Principal{Kind: r.DecidedKind, ID: r.DecidedID, Name: r.DecidedName, Role: r.DecidedRole},
		DecidedAt: r.DecidedAt, Reason: r.DecisionReason, Code: r.Code, Interrupt: r.Interrupt,
		Builds: collect(r.Builds, buildRow.count), Stale: r.Stale, WaitUntil: r.WaitUntil}
}

func toApproval(row pgx.CollectableRow) (call.Approval, error) {
	r, err := pgx.RowToStructByName[approvalRow](row)
	if err != nil {
		return call.Approval{}, err
	}
	return r.approval(), nil
}

// approvalScope leaves out approvals of tools that do not exist for the principal. The service
// checks that the devices exist.
func (w *where) approvalScope(ctx context.Context) {
	w.toolScope(ctx, "approvals.tool", `EXISTS (SELECT FROM inventories i JOIN device_inventories listed ON listed.inventory_id = i.id
		WHERE approvals.tool = ANY (i.user_tools) AND (listed.device_id = approvals.device_id OR listed.device_id IN (
			SELECT device_id FROM fanout_targets part WHERE part.fanout_id = approvals.subject_id AND part.reason = '')))`)
}

// Approval returns one approval, or [fleet.ErrNotFound].
func (s *Store) Approval(ctx context.Context, id uuid.UUID) (call.Approval, error) {
	scoped, args := scopedBy([]any{id}, func(w *where) { w.approvalScope(ctx) })
	rows, _ := s.db.Query(ctx, `SELECT `+approvalColumns+` FROM approvals WHERE id = $1`+scoped, args...)
	a, err := pgx.CollectExactlyOneRow(rows, toApproval)
	if err != nil {
		return a, fmt.Errorf("approval %s: %w", id, domainError(err))
	}
	return a, nil
}

// Approvals lists approvals, newest first.
func (s *Store) Approvals(ctx context.Context, f call.ApprovalFilter) (fleet.Page[call.Approval], error) {
	none := fleet.Page[call.Approval]{}
	at, err := parseCursor(f.Cursor, "approvals")
	if err != nil {
		return none, err
	}
	var w where
	if len(f.States) > 0 {
		w.and("state = ANY (?)", f.States)
	}
	w.andText("device_id = ?", string(f.Device))
	w.approvalScope(ctx)
	order, err := w.idsDown(at)
	if err != nil {
		return none, err
	}
	limit := fleet.ClampLimit(f.Limit)
	rows, _ := s.db.Query(ctx, `SELECT `+approvalColumns+` FROM approvals`+w.String()+order+` LIMIT `+w.arg(limit+1),
		w.args...)
	list, err := pgx.CollectRows(rows, toApproval)
	if err != nil {
		return none, fmt.Errorf("approvals: %w", domainError(err))
	}
	return makePage(list, limit, at, func(a call.Approval) cursor {
		return cursor{List: "approvals", ID: a.ID.String()}
	}), nil
}

// WaitingApprovals counts the approvals that can still be decided.
func (s *Store) WaitingApprovals(ctx context.Context, now time.Time) (n int, err error) {
	err = s.db.QueryRow(ctx, `SELECT count(*) FROM approvals WHERE state = 'waiting' AND expires_at > $1`, now).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count approvals that wait: %w", domainError(err))
	}
	return n, nil
}

// ApprovalTargets lists the devices of a fan-out, with the details that its approval shows for
// each.
func (s *Store) ApprovalTargets(ctx context.Context, fanOut uuid.UUID) ([]call.ApprovalTarget, error) {
	rows, _ := s.db.Query(ctx, `
		SELECT device_id, tool_digest, coalesce(elf_sha256, ''), coalesce(version, '')
		FROM fanout_targets WHERE fanout_id = $1 AND reason = '' ORDER BY device_id LIMIT $2`,
		fanOut, call.MaxFanOutDevices)
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t call.ApprovalTarget, err error) {
		var digest []byte
		err = row.Scan(&t.Device, &digest, &t.Build.ELF, &t.Build.Version)
		copy(t.Build.Tool[:], digest)
		return t, err
	})
	if err != nil {
		return nil, fmt.Errorf("targets of fan-out %s: %w", fanOut, domainError(err))
	}
	return list, nil
}

// Decide ends a waiting approval, and the wait of its subject. Of several concurrent decisions
// the first one wins; the others fail because the approval no longer waits.
func (s *Store) Decide(ctx context.Context, d call.ApprovalDecision) error {
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		a, err := endApproval(ctx, tx, d)
		if err != nil {
			return err
		}
		return s.afterEnd(ctx, tx, a, d)
	})
	if err == nil {
		return nil
	}
	if certainlyUndone(err) {
		err = fmt.Errorf("%w: %w", fleet.ErrNotStored, domainError(err))
	}
	return fmt.Errorf("approval %s not %s: %w", d.ID, d.State, domainError(err))
}

// endApproval changes the approval only.
func endApproval(ctx context.Context, tx pgx.Tx, d call.ApprovalDecision) (call.Approval, error) {
	rows, _ := tx.Query(ctx, `
		UPDATE approvals SET state = $2, decided_kind = $3, decided_id = $4, decided_name = $5, decided_role = $6,
			decided_at = $7, decision_reason = $8, code = $9, stale = $10
		WHERE id = $1 AND state = 'waiting' AND ($2 <> 'approved' OR expires_at > $7)
		RETURNING `+approvalColumns,
		d.ID, d.State, d.By.Kind, d.By.ID, cleanText(d.By.Name), d.By.Role, d.At, cleanText(d.Reason), d.Code,
		d.Stale)
	a, err := pgx.CollectExactlyOneRow(rows, toApproval)
	if !errors.Is(err, pgx.ErrNoRows) {
		return a, err
	}
	rows, _ = tx.Query(ctx, `SELECT `+approvalColumns+` FROM approvals WHERE id = $1`, d.ID)
	if a, err = pgx.CollectExactlyOneRow(rows, toApproval); err != nil {
		return a, err
	}
	return a, fleet.Refuse(fleet.ErrConflict, "approval_not_waiting", "state",
		fleet.Because("state."+string(a.StateAt(d.At))), "actor", a.DecidedBy.Name)
}

// afterEnd changes the subject of an approval that has ended, and records the decision with its
// principal.
func (s *Store) afterEnd(ctx context.Context, tx pgx.Tx, a call.Approval, d call.ApprovalDecision) error {
	var err error
	switch {
	case a.Subject == call.ApprovalOfCall && d.State == call.ApprovalApproved:
		err = releaseCall(ctx, tx, a, d.Call)
	case a.Subject == call.ApprovalOfCall:
		e := a.Refusal()
		_, err = endCalls(ctx, tx, `
			UPDATE calls c SET state = 'refused', failure = 'refused', error_code = $3, error_message = '',
				error_params = $4::json, finished_at = $5, sealed_arguments = NULL
			WHERE id = $1 AND created_at = $2 AND state = 'pending_approval'`,
			a.SubjectID, a.CreatedAt, e.Code, marshalled(e.Params), d.At)
	case d.State == call.ApprovalApproved:
		err = changeOne(ctx, tx, `
			UPDATE fanouts SET state = 'running', started_at = $2 WHERE id = $1 AND state = 'pending_approval'`,
			a.SubjectID, d.At)
	case d.State == call.ApprovalWithdrawn:
		_, err = tx.Exec(ctx, `
			UPDATE fanouts SET state = 'canceled', finished_at = $2, canceled_by = $3, sealed_arguments = NULL
			WHERE id = $1 AND state = 'pending_approval'`, a.SubjectID, d.At, cleanText(d.By.Name))
	default:
		_, err = tx.Exec(ctx, `
			UPDATE fanouts SET state = 'refused', finished_at = $2, sealed_arguments = NULL
			WHERE id = $1 AND state = 'pending_approval'`,
			a.SubjectID, d.At)
	}
	if err != nil {
		return err
	}
	detail := approvalDetail(a)
	detail["reason"] = a.Reason
	if a.Code != "" {
		detail["code"] = a.Code
	}
	if a.Stale != "" {
		detail["stale"] = a.Stale
	}
	if err := writeAudit(ctx, tx, d.By, "approval."+verbs[d.State], a.ID.String(), detail); err != nil {
		return err
	}
	return s.publish(ctx, tx, webhook.ApprovalDecided, d.At, a)
}

// verbs contains the actions of audit entries.
var verbs = map[call.ApprovalState]string{call.ApprovalApproved: "approve", call.ApprovalDenied: "deny",
	call.ApprovalExpired: "expire", call.ApprovalWithdrawn: "withdraw"}

// releaseCall stores the new state of an approved call: it is pending, waits for its device, or
// was refused by the policy meanwhile.
func releaseCall(ctx context.Context, tx pgx.Tx, a call.Approval, c *fleet.Call) error {
	w, err := newCallWrite(c, true)
	if err != nil {
		return err
	}
	change, args := `
		UPDATE calls c SET state = $3, failure = $4, error_code = $5, error_message = $6, error_params = $7::json,
			finished_at = $8, arguments = $9::json, sealed_arguments = $10
		WHERE id = $1 AND created_at = $2 AND state = 'pending_approval'`, []any{
		a.SubjectID, a.CreatedAt, w.row.state, w.row.failure, w.row.errorCode, w.row.errorMessage, w.row.errorParams,
		w.row.finishedAt, w.row.arguments, w.row.sealed}
	if c.State.Final() {
		var n int64
		if n, err = endCalls(ctx, tx, change, args...); err == nil && n == 0 {
			err = fleet.ErrNotFound
		}
	} else {
		err = changeOne(ctx, tx, change, args...)
	}
	if isNotFound(err) { // the call ended while its approval waited
		return fleet.Refuse(fleet.ErrConflict, "approval_not_waiting", "state", fleet.Because("state.canceled"), "actor", "")
	}
	if err == nil && c.State == fleet.CallPendingDevice {
		return keepWait(ctx, tx, c, call.Wait{Interrupt: a.Interrupt, Picture: a.Picture})
	}
	return err
}

// withdrawApprovalOf ends the waiting approval, if any, of a canceled subject.
func withdrawApprovalOf(ctx context.Context, tx pgx.Tx, by fleet.Principal, subject call.ApprovalSubject, id uuid.UUID,
	at time.Time) error {
	_, err := tx.Exec(ctx, `
		UPDATE approvals SET state = 'withdrawn', decided_kind = $3, decided_id = $4, decided_name = $5, decided_role = $6,
			decided_at = $7, code = $8
		WHERE subject = $1 AND subject_id = $2 AND state = 'waiting'`,
		subject, id, by.Kind, by.ID, cleanText(by.Name), by.Role, at, call.CodeApprovalWithdrawn)
	return err
}

// expireAtOnce bounds the approvals of one transaction.
const expireAtOnce = 200

// ExpireApprovals ends approvals that have expired.
func (s *Store) ExpireApprovals(ctx context.Context, now time.Time) ([]call.Approval, error) {
	var ended []call.Approval
	system := fleet.Principal{Kind: fleet.KindSystem, Name: "fleetd"}
	err := pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `
			SELECT id FROM approvals WHERE state = 'waiting' AND expires_at <= $1
			ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED`, now, expireAtOnce)
		due, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		if err != nil {
			return err
		}
		for _, id := range due {
			d := call.ApprovalDecision{ID: id, State: call.ApprovalExpired, By: system, At: now,
				Code: call.CodeApprovalExpired}
			a, err := endApproval(ctx, tx, d)
			if err != nil {
				return err
			}
			if err := s.afterEnd(ctx, tx, a, d); err != nil {
				return err
			}
			ended = append(ended, a)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("end approvals that have expired: %w", domainError(err))
	}
	return ended, nil
}

// PrincipalLine follows the creators of tokens up to an operator or the system, which has no id.
func (s *Store) PrincipalLine(ctx context.Context, p fleet.Principal) (line []string, person string, err error) {
	rows, _ := s.db.Query(ctx, `
		WITH RECURSIVE line (kind, id, depth) AS (
			SELECT $1::text, $2::text, 0
			UNION
			SELECT t.created_by_kind, t.created_by_id, line.depth + 1
			FROM line JOIN tokens t ON line.kind IN ('program', 'model') AND t.id::text = line.id
			WHERE line.depth < 20)
		SELECT line.id, coalesce(o.name, '') AS name
		FROM line LEFT JOIN operators o ON line.kind = 'operator' AND o.id::text = line.id AND line.depth > 0
		WHERE line.id <> '' ORDER BY line.depth`, p.Kind, p.ID)
	var id, name string
	_, err = pgx.ForEachRow(rows, []any{&id, &name}, func() error {
		line = append(line, id)
		if name != "" {
			person = name
		}
		return nil
	})
	if err != nil {
		return nil, "", fmt.Errorf("who made the token %q: %w", p.Name, domainError(err))
	}
	return line, person, nil
}

// Linked reports whether two principals are the same, or linked by tokens created by one of them
// or by the same operator.
func (s *Store) Linked(ctx context.Context, a, b fleet.Principal) (bool, error) {
	if a.Same(b) {
		return true, nil
	}
	ofA, _, err := s.PrincipalLine(ctx, a)
	if err != nil {
		return false, err
	}
	ofB, _, err := s.PrincipalLine(ctx, b)
	return slices.ContainsFunc(ofA, func(id string) bool { return slices.Contains(ofB, id) }), err
}

// PrincipalNow reads an operator or a token again. Other principals are returned unchanged,
// because no row stores their rights.
func (s *Store) PrincipalNow(ctx context.Context, p fleet.Principal, now time.Time) (fleet.Principal, error) {
	if p.Kind == fleet.KindModel && strings.HasPrefix(p.ID, fleet.EndpointPrefix) {
		return s.consumerNow(ctx, p)
	}
	id, err := uuid.Parse(p.ID)
	if err != nil {
		return p, nil
	}
	switch p.Kind {
	case fleet.KindOperator:
		o, err := s.Operator(ctx, id)
		if err == nil && o.DisabledAt != nil {
			err = fmt.Errorf("operator %s is disabled: %w", o.Name, fleet.ErrNotFound)
		}
		return o.Principal(), err
	case fleet.KindProgram, fleet.KindModel:
		rows, _ := s.db.Query(ctx, `
			SELECT `+tokenColumns+` FROM tokens
			WHERE id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > $2)`, id, now)
		t, err := pgx.CollectExactlyOneRow(rows, toToken)
		if err != nil {
			return fleet.Principal{}, fmt.Errorf("token %s: %w", p.Name, domainError(err))
		}
		return t.Principal(), nil
	}
	return p, nil
}
