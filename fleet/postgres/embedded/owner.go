package embedded

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// owner is the operating system user that a cluster belongs to and that its
// server runs as.
type owner struct {
	uid, gid int
	name     string
}

// unprivileged are the users root hands a new cluster to, best first. Both
// exist already: fleetd adds no user to a machine.
var unprivileged = []string{"postgres", "nobody"}

// newOwner returns the user that a new cluster must belong to.
func newOwner() (owner, error) {
	if os.Geteuid() != 0 {
		return owner{uid: os.Geteuid(), gid: os.Getegid(), name: currentUser()}, nil
	}
	for _, name := range unprivileged {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err := errors.Join(err1, err2); err != nil {
			return owner{}, fmt.Errorf("user %s: %w", name, err)
		}
		return owner{uid: uid, gid: gid, name: name}, nil
	}
	return owner{}, errors.New("PostgreSQL does not run as root, and there is neither a user postgres nor nobody to run it as: start fleetd as an ordinary user, or use --database-url")
}

// clusterOwner returns the user that the existing cluster belongs to.
func (d dataDir) clusterOwner() (owner, error) {
	path := d.cluster()
	info, err := os.Stat(path)
	if err != nil {
		return owner{}, d.unreadable(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	o := owner{uid: int(st.Uid), gid: int(st.Gid), name: userName(int(st.Uid))}
	switch euid := os.Geteuid(); {
	case o.uid == 0:
		return owner{}, fmt.Errorf("%s belongs to root, and PostgreSQL does not run as root: give it to the user it should run as (chown -R postgres %[1]s)", path)
	case euid != 0 && euid != o.uid:
		return owner{}, fmt.Errorf("%s belongs to user %s and fleetd runs as %s: run it as the user that started it first, or choose another --data-dir",
			path, o.name, currentUser())
	}
	return o, nil
}

// credential returns nil for a process that already runs as this user: only root may change it.
func (o owner) credential() *syscall.Credential {
	if os.Geteuid() == o.uid {
		return nil
	}
	return &syscall.Credential{Uid: uint32(o.uid), Gid: uint32(o.gid)}
}

func currentUser() string { return userName(os.Geteuid()) }

func userName(uid int) string {
	if u, err := user.LookupId(strconv.Itoa(uid)); err == nil {
		return u.Username
	}
	return strconv.Itoa(uid)
}
