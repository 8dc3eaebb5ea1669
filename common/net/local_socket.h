/* local_socket.h - where processes of one user on one host meet: Unix-domain sockets in the user's folder.
 *
 * DESIGN.  A listener at a TCP address also listens at a socket that is named after it: port, address, and network
 * namespace, since an address of another namespace is another listener's.  Whoever dials the address looks for this
 * socket first.  Only this user can enter the folder (user_folder.h), so the kernel keeps all others out before a byte
 * is read, and whoever finds the socket reaches exactly that listener.  Nothing is encrypted: root could read it, as it
 * can read the processes' memory.
 *
 * A killed listener leaves its file, which refuses connections; the next listener at the address takes its place, and
 * each listener and launcher removes those of others.  The folder is locked meanwhile: shared by those that change their
 * own file, for one alone while it removes those of others.
 * Thread  any.
 */
#ifndef COMMON_LOCAL_SOCKET_H
#define COMMON_LOCAL_SOCKET_H

#include "penstock.h"
#include <stdbool.h>
#include <stddef.h>

enum { LOCAL_SOCKET_PATH_BYTES = 108 }; /* as in sockaddr_un */

typedef struct local_socket local_socket;

/* Listens for those who dial `address`, the numeric "tcp://ADDRESS:PORT" of a listener, perhaps a wildcard.
 * Errors  UNREACHABLE  another process of this user listens there
 *         STORE        no folder, or its name is too long for a socket: names it; an address of one link only */
pen_status local_socket_listen(const char *address, int backlog, local_socket **made,
                               pen_error *why);
int local_socket_take(local_socket *s);   /* its descriptor, which the caller closes from now on */
void local_socket_close(local_socket *s); /* and removes its file; NULL is fine */
void local_socket_forget(
    local_socket *s); /* in a forked child: leaves the parent's alone; NULL is fine */

/* The socket of a live listener that a dialler of this numeric address reaches; false: there is none. */
bool local_socket_find(const char *address, char path[LOCAL_SOCKET_PATH_BYTES]);

/* Whether this is the path of a local socket of that port, at any address. */
bool local_socket_is_of(const char *path, unsigned port);

/* Whether a process listens there.  A connect of another type tells it from a file that was left, disturbing nobody. */
bool local_socket_is_live(const char *path);

/* Whether some process has the port of this numeric address, perhaps one whose local socket is not to be found here. */
bool local_socket_is_taken(const char *address);

/* More room in the kernel for what one end has sent and the other has not read: by default a fifth of a message of 1
 * MiB fits, and both ends wake for each piece.  Does nothing to other sockets. */
void local_socket_widen(int fd);

/* Removes the sockets of this user's dead listeners. */
void local_socket_sweep(void);

/* Reserves the port of "tcp://HOST:PORT", 0 for any, without listening: the system refuses every connection.  bound
 * gets the numeric address.  Returns a descriptor, or -1 and errno; EINVAL: no such host. */
int local_socket_reserve(const char *address, char *bound, size_t size);

#endif
