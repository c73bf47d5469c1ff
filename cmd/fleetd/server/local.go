package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"
	"golang.org/x/term"

	"fleetd/cmd/fleetd/terminal"
	"fleetd/fleet"
	"fleetd/fleet/operator"
)

// localActor is the principal of commands on the server's own machine.
var localActor = fleet.Principal{Kind: fleet.KindSystem, Name: "command line", Role: fleet.RoleAdmin}

// withOperators opens the server's database for one command, whether the database runs or
// not.
func (f *Database) withOperators(ctx context.Context, do func(*operator.Service) error) error {
	db, err := openDatabase(ctx, f, quietLogger())
	if err != nil {
		return err
	}
	defer db.close()
	return do(operator.New(db.store))
}

type UserCommand struct {
	Add     userAdd     `cmd:"" help:"Add an operator."`
	List    userList    `cmd:"" help:"List operators."`
	Passwd  userPasswd  `cmd:"" help:"Set an operator's password."`
	Disable userDisable `cmd:"" help:"Disable an operator, or enable one again with --enable."`
}

type userAdd struct {
	Database
	Name     string `arg:"" help:"Name for signing in."`
	Role     string `help:"Role of the operator." enum:"viewer,operator,admin" default:"operator"`
	Scope    string `help:"Filter of the devices to which the role applies, such as tag:lab. Default: all."`
	Rest     string `help:"Role on all other devices. Default: the operator cannot see them." enum:",viewer,operator,admin" default:""`
	Password string `help:"Password. Default: prompt on a terminal, else generate and print one." env:"FLEETD_USER_PASSWORD"`

	PasswordFile string `name:"password-file" help:"File that contains the password." env:"FLEETD_USER_PASSWORD_FILE" type:"path" placeholder:"FILE"`
}

func (c *userAdd) Run(ctx context.Context) error {
	password, generated, err := choosePassword(c.Password, c.PasswordFile)
	if err != nil {
		return err
	}
	return c.withOperators(ctx, func(s *operator.Service) error {
		o, err := s.Create(ctx, localActor, operator.Request{Name: c.Name, Password: password,
			Access: operator.Access{Role: fleet.Role(c.Role), Scope: c.Scope, Rest: fleet.Role(c.Rest)}})
		if err != nil {
			return err
		}
		warnOfClaims(o.Scope)
		fmt.Printf("operator %s added with the role %s\n", c.Name, c.Role)
		if generated {
			fmt.Println("password:", password)
		}
		return nil
	})
}

type userList struct {
	Database
	JSON bool `name:"json" help:"Print JSON."`
}

func (c *userList) Run(ctx context.Context) error {
	return c.withOperators(ctx, func(s *operator.Service) error {
		operators, err := s.Operators(ctx)
		if err != nil {
			return err
		}
		var rows [][]string
		items := []map[string]any{}
		for _, o := range operators {
			scope := cmp.Or(o.Scope, &fleet.Scope{})
			rows = append(rows, []string{o.Name, string(o.Role), o.CreatedAt.Format(time.DateOnly), status(o.DisabledAt,
				"disabled"), cmp.Or(scope.Filter.Text, "-"), cmp.Or(string(scope.Rest), "-")})
			items = append(items, map[string]any{"id": o.ID, "name": o.Name, "role": o.Role, "scope": scope.Filter.Text,
				"rest": scope.Rest, "created_at": o.CreatedAt, "disabled_at": o.DisabledAt})
		}
		if c.JSON {
			return terminal.JSON(items)
		}
		return terminal.Table("NAME ROLE CREATED STATUS SCOPE REST", rows)
	})
}

func status(ended *time.Time, word string) string {
	if ended == nil {
		return "active"
	}
	return word
}

type userPasswd struct {
	Database
	Name     string `arg:"" help:"Name of the operator."`
	Password string `help:"New password. Default: prompt on a terminal, else generate and print one." env:"FLEETD_USER_PASSWORD"`

	PasswordFile string `name:"password-file" help:"File that contains the password." env:"FLEETD_USER_PASSWORD_FILE" type:"path" placeholder:"FILE"`
}

func (c *userPasswd) Run(ctx context.Context) error {
	password, generated, err := choosePassword(c.Password, c.PasswordFile)
	if err != nil {
		return err
	}
	return c.withOperators(ctx, func(s *operator.Service) error {
		o, err := operatorNamed(ctx, s, c.Name)
		if err != nil {
			return err
		}
		if err := s.SetPassword(ctx, localActor, o.ID, password); err != nil {
			return err
		}
		fmt.Println("password of", o.Name, "changed")
		if generated {
			fmt.Println("password:", password)
		}
		return nil
	})
}

func operatorNamed(ctx context.Context, s *operator.Service, name string) (operator.Operator, error) {
	o, err := s.ByName(ctx, name)
	if errors.Is(err, fleet.ErrNotFound) {
		return o, fmt.Errorf("there is no operator %q; see fleetd user list", name)
	}
	return o, err
}

type userDisable struct {
	Database
	Name   string `arg:"" help:"Name of the operator."`
	Enable bool   `help:"Enable the operator again."`
}

func (c *userDisable) Run(ctx context.Context) error {
	return c.withOperators(ctx, func(s *operator.Service) error {
		o, err := operatorNamed(ctx, s, c.Name)
		if err != nil {
			return err
		}
		return s.SetDisabled(ctx, localActor, o.ID, !c.Enable)
	})
}

type TokenCommand struct {
	Create tokenCreate `cmd:"" help:"Create an API token; its secret is printed only once."`
	List   tokenList   `cmd:"" help:"List API tokens."`
	Revoke tokenRevoke `cmd:"" help:"Revoke an API token."`
}

type tokenCreate struct {
	Database
	Name    string        `arg:"" help:"Name of the program that will use it."`
	Role    string        `help:"Role of the token." enum:"viewer,operator,admin" default:"operator"`
	Kind    string        `help:"Kind of client: a program, or a language model, which can never call user-only tools." enum:"program,model" default:"program"`
	Scope   string        `help:"Filter of the devices that the token can see, such as tag:lab. Default: all."`
	Tools   []string      `help:"Patterns of the tools that the token may call, such as self.audio_speaker.*; * for all. Default: all for a program, none for a model." placeholder:"PATTERN,..."`
	PerMin  int           `name:"per-minute" help:"Maximum requests a minute; 0: no limit."`
	Expires time.Duration `help:"Expire the token after this time."`
	JSON    bool          `name:"json" help:"Print JSON."`
}

func (c *tokenCreate) Run(ctx context.Context) error {
	var expires *time.Time
	if c.Expires > 0 {
		t := time.Now().UTC().Add(c.Expires)
		expires = &t
	}
	return c.withOperators(ctx, func(s *operator.Service) error {
		t, secret, err := s.NewToken(ctx, localActor, operator.TokenRequest{Name: c.Name, Role: fleet.Role(c.Role),
			Kind: fleet.PrincipalKind(c.Kind), Scope: c.Scope, Tools: c.Tools, PerMinute: c.PerMin, ExpiresAt: expires})
		if err != nil {
			return err
		}
		warnOfClaims(t.Scope)
		if !t.Scope.AllTools() && t.Scope.NoTools {
			fmt.Fprintln(os.Stderr, "Warning: the token may call no tool. Name those that the model may call, as --tools "+
				"'self.get_*,self.audio_speaker.*'; --tools '*' is all.")
		}
		if c.JSON {
			return terminal.JSON(map[string]any{"token": secret, "id": t.ID, "name": t.Name, "role": t.Role,
				"kind": t.Kind, "scope": c.Scope, "tools": append([]string{}, c.Tools...), "per_minute": t.PerMinute,
				"expires_at": t.ExpiresAt})
		}
		fmt.Println(secret)
		return nil
	})
}

// warnOfClaims prints a warning if devices could choose whether they are in a new scope.
func warnOfClaims(s *fleet.Scope) {
	if s == nil {
		return
	}
	if fields := s.Filter.Claims(); len(fields) > 0 {
		fmt.Fprintf(os.Stderr, "Warning: the scope relies on what devices report about themselves: %s. Board and chip are not "+
			"checked until a device is accepted, and are pinned from then on. To be safe, scope by tags: people set them.\n", strings.Join(fields, ", "))
	}
}

type tokenList struct {
	Database
	JSON bool `name:"json" help:"Print JSON."`
}

func (c *tokenList) Run(ctx context.Context) error {
	return c.withOperators(ctx, func(s *operator.Service) error {
		tokens, err := s.Tokens(ctx)
		if err != nil {
			return err
		}
		var rows [][]string
		items := []map[string]any{}
		for _, t := range tokens {
			scope := cmp.Or(t.Scope, &fleet.Scope{})
			rows = append(rows, []string{t.ID.String(), t.Name, string(t.Role), "…" + t.Hint, t.CreatedAt.Format(time.DateOnly),
				status(t.RevokedAt, "revoked"), string(t.Kind), cmp.Or(scope.Filter.Text, "-"),
				toolsOf(t.Scope)})
			items = append(items, map[string]any{"id": t.ID, "name": t.Name, "role": t.Role, "hint": t.Hint,
				"kind": t.Kind, "scope": scope.Filter.Text, "tools": append([]string{}, scope.Tools...),
				"per_minute": t.PerMinute,
				"created_by": t.CreatedBy,
				"created_at": t.CreatedAt, "last_used_at": t.LastUsedAt, "expires_at": t.ExpiresAt, "revoked_at": t.RevokedAt})
		}
		if c.JSON {
			return terminal.JSON(items)
		}
		return terminal.Table("ID NAME ROLE SECRET CREATED STATUS KIND SCOPE TOOLS", rows)
	})
}

// toolsOf lists the tools that a token may call.
func toolsOf(s *fleet.Scope) string {
	switch {
	case s.AllTools():
		return "all tools"
	case s.NoTools:
		return "none"
	}
	return strings.Join(s.Tools, ",")
}

type tokenRevoke struct {
	Database
	ID string `arg:"" help:"Id of the token; see fleetd token list."`
}

func (c *tokenRevoke) Run(ctx context.Context) error {
	id, err := uuid.Parse(c.ID)
	if err != nil {
		return UsageError{fmt.Errorf("%q is not a token id; see fleetd token list", c.ID)}
	}
	return c.withOperators(ctx, func(s *operator.Service) error { return s.Revoke(ctx, localActor, id) })
}

// choosePassword returns the given password. Without one it asks for one on a terminal,
// or else generates one.
func choosePassword(given, file string) (password string, generated bool, err error) {
	err = terminal.ReadSecrets(terminal.WarnOpenSecret, terminal.Secret{Flag: "--password", Value: &given, File: file})
	if err != nil {
		return "", false, UsageError{err}
	}
	if given != "" {
		return given, false, nil
	}
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		return newPassword(), true, nil
	}
	fmt.Fprint(os.Stderr, "New password (empty to have one made): ")
	line, err := term.ReadPassword(int(os.Stdin.Fd()))
	fmt.Fprintln(os.Stderr)
	if err != nil {
		return "", false, err
	}
	if len(line) == 0 {
		return newPassword(), true, nil
	}
	return string(line), false, nil
}

// newPassword generates a password of 80 random bits that is easy to type.
func newPassword() string {
	s := strings.ToLower(rand.Text()[:16])
	return s[0:4] + "-" + s[4:8] + "-" + s[8:12] + "-" + s[12:16]
}
