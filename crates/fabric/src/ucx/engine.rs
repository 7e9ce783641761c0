//! UCX' worker, its listeners and endpoints: all calls of UCX but those of `start.rs`.
//!
//! What UCX calls back with is put into an [`Inbox`], in its order, and looked at when UCX has
//! returned. Everything here is done by the one thread that has the fabric.

use super::start;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CStr, c_void};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr::{null, null_mut};
use ucx_rs::sys;

/// The id of the one kind of active messages: the next bytes of a link.
const BYTES_ID: u32 = 7;

/// The header of such a message: its number on the link.
const NUMBER_BYTES: usize = 8;

/// An error of UCX.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status(pub(super) sys::ucs_status_t);

impl Status {
    fn check(status: sys::ucs_status_t) -> Result<(), Status> {
        if status == sys::ucs_status_t_UCS_OK { Ok(()) } else { Err(Status(status)) }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(ucx_rs::status_string(self.0))
    }
}

/// What UCX has told.
pub(super) enum Told {
    /// Bytes `from..to` of the inbox have come, as message `number` of this connection.
    Bytes { key: u64, number: u64, from: usize, to: usize },
    /// The connection has failed.
    Failed { key: u64, status: Status },
    /// A peer wants to connect.
    Asked(Request),
}

/// A peer that wants to connect, at the listener of this place. Used up by
/// [`Engine::accept`] or [`Engine::reject`].
pub(super) struct Request {
    listener: usize,
    handle: sys::ucp_conn_request_h,
}

/// What has come since it was taken the last time.
#[derive(Default)]
pub(super) struct Inbox {
    pub(super) told: Vec<Told>,
    pub(super) bytes: Vec<u8>,
}

/// What callbacks of UCX may touch.
#[derive(Default)]
struct Shared {
    inbox: Inbox,
    /// The connections of endpoints, by the numbers that their addresses are.
    keys: BTreeMap<usize, u64>,
}

/// What the callback of a listener is given.
struct Asking {
    shared: *mut Shared,
    place: usize,
}

/// What the error callback of an endpoint is given.
struct Failing {
    shared: *mut Shared,
    key: u64,
}

/// One end of a connection. Only [`Engine::close`] ends it.
pub(super) struct Endpoint {
    handle: sys::ucp_ep_h,
    /// From `Box::into_raw`; freed when the endpoint is closed.
    failing: *mut Failing,
}

/// A message on its way: its bytes stay where they are until it is [done](Engine::is_done).
pub(super) struct Sending {
    request: *mut c_void,
    bytes: Vec<u8>,
}

impl Sending {
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// An endpoint that is being closed, with the messages that it had on their way.
struct Closing {
    request: *mut c_void,
    failing: *mut Failing,
    sends: VecDeque<Sending>,
}

/// A context of UCX and its worker.
pub(super) struct Engine {
    context: sys::ucp_context_h,
    worker: sys::ucp_worker_h,
    /// From `Box::into_raw`, freed on drop after the worker, which alone calls back. A reference is
    /// made of it in callbacks and between calls of UCX only, never across one.
    shared: *mut Shared,
    listeners: Vec<(sys::ucp_listener_h, *mut Asking)>,
    closing: Vec<Closing>,
    efd: i32,
}

// SAFETY: the worker is made for several threads of which one at a time calls it
// (`UCS_THREAD_MODE_SERIALIZED`); pointers are to what it and UCX own.
unsafe impl Send for Engine {}
// SAFETY: a handle that nothing is done with but by way of the engine.
unsafe impl Send for Endpoint {}
// SAFETY: as `Endpoint`.
unsafe impl Send for Sending {}
// SAFETY: as `Endpoint`.
unsafe impl Send for Request {}

impl Engine {
    /// One that uses these transports only, a list as in `UCX_TLS`, and of network interfaces
    /// these, if there are any.
    ///
    /// # Errors
    /// What UCX could not begin with, and why.
    pub(super) fn new(transports: &str, interfaces: &[String]) -> Result<Self, String> {
        let context = start::context(transports, interfaces)?;
        let shared = Box::into_raw(Box::<Shared>::default());
        let mut made = Self {
            context,
            worker: null_mut(),
            shared,
            listeners: Vec::new(),
            closing: Vec::new(),
            efd: -1,
        };
        let failed = |what: &'static str| move |status| format!("UCX' {what}: {status}");
        made.begin_worker().map_err(failed("worker"))?;
        Ok(made)
    }

    fn begin_worker(&mut self) -> Result<(), Status> {
        let params = sys::ucp_worker_params_t {
            field_mask: u64::from(sys::ucp_worker_params_field_UCP_WORKER_PARAM_FIELD_THREAD_MODE),
            thread_mode: sys::ucs_thread_mode_t_UCS_THREAD_MODE_SERIALIZED,
            ..Default::default()
        };
        // SAFETY: the context is one, the parameters say which of them count.
        let status =
            unsafe { sys::ucp_worker_create(self.context, &raw const params, &mut self.worker) };
        Status::check(status)?;
        let handler = sys::ucp_am_handler_param_t {
            field_mask: u64::from(
                sys::ucp_am_handler_param_field_UCP_AM_HANDLER_PARAM_FIELD_ID
                    | sys::ucp_am_handler_param_field_UCP_AM_HANDLER_PARAM_FIELD_CB
                    | sys::ucp_am_handler_param_field_UCP_AM_HANDLER_PARAM_FIELD_ARG,
            ),
            id: BYTES_ID,
            cb: Some(came),
            arg: self.shared.cast(),
            ..Default::default()
        };
        // SAFETY: the worker is one; what the callback is given outlives it.
        let status =
            unsafe { sys::ucp_worker_set_am_recv_handler(self.worker, &raw const handler) };
        Status::check(status)?;
        // SAFETY: the worker is one.
        Status::check(unsafe { sys::ucp_worker_get_efd(self.worker, &mut self.efd) })
    }

    /// Listens, and says where.
    pub(super) fn listen(&mut self, at: SocketAddr) -> Result<SocketAddr, Status> {
        let name = SocketName::of(at);
        let asking =
            Box::into_raw(Box::new(Asking { shared: self.shared, place: self.listeners.len() }));
        let params = sys::ucp_listener_params_t {
            field_mask: u64::from(
                sys::ucp_listener_params_field_UCP_LISTENER_PARAM_FIELD_SOCK_ADDR
                    | sys::ucp_listener_params_field_UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
            ),
            sockaddr: name.as_ucx(),
            conn_handler: sys::ucp_listener_conn_handler_t { cb: Some(asked), arg: asking.cast() },
            ..Default::default()
        };
        let mut listener = null_mut();
        // SAFETY: the worker is one, the address lives until the call has returned, and what the
        // callback is given until the listener is destroyed.
        let status =
            unsafe { sys::ucp_listener_create(self.worker, &raw const params, &mut listener) };
        if let Err(status) = Status::check(status) {
            // SAFETY: of the box above; there is no listener that has it.
            drop(unsafe { Box::from_raw(asking) });
            return Err(status);
        }
        self.listeners.push((listener, asking));
        let mut found = sys::ucp_listener_attr_t {
            field_mask: u64::from(sys::ucp_listener_attr_field_UCP_LISTENER_ATTR_FIELD_SOCKADDR),
            ..Default::default()
        };
        // SAFETY: the listener is one, and the answer has its type.
        Status::check(unsafe { sys::ucp_listener_query(listener, &mut found) })?;
        // SAFETY: an address of the kernel's, as UCX has just written it.
        let found = unsafe { address_at((&raw const found.sockaddr).cast()) };
        Ok(found.unwrap_or(at))
    }

    /// Begins to connect.
    pub(super) fn connect(&mut self, key: u64, to: SocketAddr) -> Result<Endpoint, Status> {
        let name = SocketName::of(to);
        let params = sys::ucp_ep_params_t {
            field_mask: u64::from(
                sys::ucp_ep_params_field_UCP_EP_PARAM_FIELD_FLAGS
                    | sys::ucp_ep_params_field_UCP_EP_PARAM_FIELD_SOCK_ADDR,
            ),
            flags: sys::ucp_ep_params_flags_field_UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
            sockaddr: name.as_ucx(),
            ..Default::default()
        };
        self.endpoint(key, params)
    }

    /// Lets a peer connect.
    pub(super) fn accept(&mut self, key: u64, request: Request) -> Result<Endpoint, Status> {
        let params = sys::ucp_ep_params_t {
            field_mask: u64::from(sys::ucp_ep_params_field_UCP_EP_PARAM_FIELD_CONN_REQUEST),
            conn_request: request.handle,
            ..Default::default()
        };
        self.endpoint(key, params)
    }

    /// Does not let a peer connect.
    pub(super) fn reject(&mut self, request: Request) {
        if let Some((listener, _)) = self.listeners.get(request.listener) {
            // SAFETY: the listener that the request came to; each request is used once, as it is
            // taken by value.
            unsafe { sys::ucp_listener_reject(*listener, request.handle) };
        }
    }

    /// Makes an endpoint whose errors are told, where the rest of the parameters is `params`.
    fn endpoint(&mut self, key: u64, params: sys::ucp_ep_params_t) -> Result<Endpoint, Status> {
        let failing = Box::into_raw(Box::new(Failing { shared: self.shared, key }));
        let params = sys::ucp_ep_params_t {
            field_mask: params.field_mask
                | u64::from(
                    sys::ucp_ep_params_field_UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
                        | sys::ucp_ep_params_field_UCP_EP_PARAM_FIELD_ERR_HANDLER,
                ),
            err_mode: sys::ucp_err_handling_mode_t_UCP_ERR_HANDLING_MODE_PEER,
            err_handler: sys::ucp_err_handler_t { cb: Some(failed), arg: failing.cast() },
            ..params
        };
        let mut handle = null_mut();
        // SAFETY: the worker is one, the parameters are right by the callers, and what the callback
        // is given lives until the endpoint is closed.
        let status = unsafe { sys::ucp_ep_create(self.worker, &raw const params, &mut handle) };
        if let Err(status) = Status::check(status) {
            // SAFETY: of the box above; there is no endpoint that has it.
            drop(unsafe { Box::from_raw(failing) });
            return Err(status);
        }
        // SAFETY: no call of UCX is under way.
        unsafe { (*self.shared).keys.insert(handle as usize, key) };
        Ok(Endpoint { handle, failing })
    }

    /// From now on what comes from this endpoint is told under another key.
    pub(super) fn rename(&mut self, endpoint: &Endpoint, key: u64) {
        // SAFETY: no call of UCX is under way; the box lives until the endpoint is closed.
        unsafe {
            (*self.shared).keys.insert(endpoint.handle as usize, key);
            (*endpoint.failing).key = key;
        }
    }

    /// Sends bytes, which are at least one, as message `number` of this connection. None if they
    /// are gone already. An error is told of by the inbox, too.
    pub(super) fn send(
        &mut self,
        endpoint: &Endpoint,
        number: u64,
        bytes: Vec<u8>,
    ) -> Result<Option<Sending>, Status> {
        let params = sys::ucp_request_param_t {
            op_attr_mask: sys::ucp_op_attr_t_UCP_OP_ATTR_FIELD_FLAGS,
            flags: sys::ucp_send_am_flags_UCP_AM_SEND_FLAG_REPLY
                | sys::ucp_send_am_flags_UCP_AM_SEND_FLAG_EAGER
                | sys::ucp_send_am_flags_UCP_AM_SEND_FLAG_COPY_HEADER,
            ..Default::default()
        };
        let number = number.to_le_bytes();
        // SAFETY: the endpoint is open, the number is copied, and the bytes, on the heap, stay
        // where they are until the request is done.
        let sent = unsafe {
            sys::ucp_am_send_nbx(
                endpoint.handle,
                BYTES_ID,
                number.as_ptr().cast(),
                NUMBER_BYTES,
                bytes.as_ptr().cast(),
                bytes.len(),
                &raw const params,
            )
        };
        let request = ucx_rs::decode_status_ptr(sent).map_err(Status)?;
        Ok(request.map(|request| Sending { request, bytes }))
    }

    /// Whether UCX needs the bytes of a message no more, however it ended.
    pub(super) fn is_done(&self, sending: &Sending) -> bool {
        is_done(sending.request)
    }

    /// Ends the use of a message that is done.
    pub(super) fn release(&mut self, sending: Sending) {
        debug_assert!(self.is_done(&sending));
        // SAFETY: a request of UCX, which is given back once.
        unsafe { sys::ucp_request_free(sending.request) };
    }

    /// Closes an endpoint at once: what it has under way may be lost.
    pub(super) fn close(&mut self, endpoint: Endpoint, sends: VecDeque<Sending>) {
        // SAFETY: no call of UCX is under way.
        unsafe { (*self.shared).keys.remove(&(endpoint.handle as usize)) };
        let params = sys::ucp_request_param_t {
            op_attr_mask: sys::ucp_op_attr_t_UCP_OP_ATTR_FIELD_FLAGS,
            flags: sys::ucp_ep_close_flags_t_UCP_EP_CLOSE_FLAG_FORCE,
            ..Default::default()
        };
        // SAFETY: the endpoint is open, and is used no more.
        let closed = unsafe { sys::ucp_ep_close_nbx(endpoint.handle, &raw const params) };
        // With an error it is closed, too.
        let request = ucx_rs::decode_status_ptr(closed).ok().flatten().unwrap_or(null_mut());
        self.closing.push(Closing { request, failing: endpoint.failing, sends });
        self.end_closed();
    }

    /// Frees what closed endpoints have left; whether there are none.
    pub(super) fn end_closed(&mut self) -> bool {
        for mut closing in std::mem::take(&mut self.closing) {
            while closing.sends.front().is_some_and(|sending| self.is_done(sending)) {
                if let Some(sending) = closing.sends.pop_front() {
                    self.release(sending);
                }
            }
            if !closing.request.is_null() && is_done(closing.request) {
                // SAFETY: a request of UCX, which is given back once.
                unsafe { sys::ucp_request_free(closing.request) };
                closing.request = null_mut();
            }
            if closing.request.is_null() && closing.sends.is_empty() {
                // SAFETY: from `endpoint`, and the endpoint is closed: nothing is called back.
                drop(unsafe { Box::from_raw(closing.failing) });
            } else {
                self.closing.push(closing);
            }
        }
        self.closing.is_empty()
    }

    /// Lets UCX do what it can; whether it did something.
    pub(super) fn progress(&mut self) -> bool {
        // SAFETY: the worker is one, and no callback, which this runs, calls it.
        unsafe { sys::ucp_worker_progress(self.worker) > 0 }
    }

    /// Swaps what has come with an inbox that was looked through.
    pub(super) fn take(&mut self, inbox: &mut Inbox) {
        inbox.told.clear();
        inbox.bytes.clear();
        // SAFETY: no call of UCX is under way.
        unsafe { std::mem::swap(&mut (*self.shared).inbox, inbox) };
    }

    /// Whether something has come that was not taken.
    pub(super) fn has_news(&self) -> bool {
        // SAFETY: no call of UCX is under way.
        unsafe { !(*self.shared).inbox.told.is_empty() }
    }

    /// Whether the thread may wait for [`Engine::wait_fd`].
    pub(super) fn arm(&mut self) -> bool {
        // SAFETY: the worker is one.
        unsafe { sys::ucp_worker_arm(self.worker) == sys::ucs_status_t_UCS_OK }
    }

    /// Readable when there is something to do, after [`Engine::arm`] was true.
    pub(super) fn wait_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the worker's descriptor, which is open as long as the worker is.
        unsafe { BorrowedFd::borrow_raw(self.efd) }
    }
}

/// Turns of letting UCX end what it has under way, before it is dropped all the same.
const LAST_TURNS: u32 = 100_000;

impl Drop for Engine {
    fn drop(&mut self) {
        if !self.worker.is_null() {
            let mut turns = 0;
            let mut inbox = Inbox::default();
            while !self.end_closed() && turns < LAST_TURNS {
                self.progress();
                turns += 1;
            }
            self.take(&mut inbox);
            for told in inbox.told {
                if let Told::Asked(request) = told {
                    self.reject(request);
                }
            }
            for (listener, _) in &self.listeners {
                // SAFETY: each is destroyed once, before its worker.
                unsafe { sys::ucp_listener_destroy(*listener) };
            }
            // SAFETY: all endpoints are closed or go with it; it is used no more.
            unsafe { sys::ucp_worker_destroy(self.worker) };
        }
        // SAFETY: nothing of it is left; it is used no more.
        unsafe { sys::ucp_cleanup(self.context) };
        for (_, asking) in self.listeners.drain(..) {
            // SAFETY: from `listen`; its listener is gone.
            drop(unsafe { Box::from_raw(asking) });
        }
        for closing in self.closing.drain(..) {
            // SAFETY: from `endpoint`; the worker is gone, and nothing is called back.
            drop(unsafe { Box::from_raw(closing.failing) });
        }
        // SAFETY: from `new`; the worker is gone, and nothing is called back.
        drop(unsafe { Box::from_raw(self.shared) });
    }
}

fn is_done(request: *mut c_void) -> bool {
    // SAFETY: a request of UCX that was not given back.
    unsafe { sys::ucp_request_check_status(request) != sys::ucs_status_t_UCS_INPROGRESS }
}

/// Bytes of a link have come.
///
/// # Safety
/// Called by UCX alone, with what it was registered with.
unsafe extern "C" fn came(
    shared: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const sys::ucp_am_recv_param_t,
) -> sys::ucs_status_t {
    // SAFETY: from `begin_worker`; the engine makes no reference to it while UCX runs.
    let shared = unsafe { &mut *shared.cast::<Shared>() };
    // SAFETY: UCX' description of the message, which lives as long as this call.
    let param = unsafe { &*param };
    let is_whole =
        param.recv_attr & u64::from(sys::ucp_am_recv_attr_t_UCP_AM_RECV_ATTR_FLAG_RNDV) == 0;
    let has_sender =
        param.recv_attr & u64::from(sys::ucp_am_recv_attr_t_UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
    let key = shared.keys.get(&(param.reply_ep as usize)).copied();
    let Some(key) = key.filter(|_| has_sender) else { return sys::ucs_status_t_UCS_OK };
    // What no fabric sends has a number that is never right.
    let mut number = [0xff; NUMBER_BYTES];
    let Inbox { told, bytes } = &mut shared.inbox;
    let from = bytes.len();
    if is_whole && header_length == NUMBER_BYTES {
        // SAFETY: as many bytes as were compared with, at what UCX says.
        unsafe { std::ptr::copy_nonoverlapping(header.cast(), number.as_mut_ptr(), NUMBER_BYTES) };
        if length > 0 {
            // SAFETY: the message's bytes, which live as long as this call.
            bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(data.cast(), length) });
        }
    }
    told.push(Told::Bytes { key, number: u64::from_le_bytes(number), from, to: bytes.len() });
    sys::ucs_status_t_UCS_OK
}

/// An endpoint has failed.
///
/// # Safety
/// Called by UCX alone, with what it was given for the endpoint.
unsafe extern "C" fn failed(
    failing: *mut c_void,
    _endpoint: sys::ucp_ep_h,
    status: sys::ucs_status_t,
) {
    // SAFETY: from `endpoint`; it lives until the endpoint is closed.
    let Failing { shared, key } = unsafe { &*failing.cast::<Failing>() };
    // SAFETY: from `new`; the engine makes no reference to it while UCX runs.
    let shared = unsafe { &mut **shared };
    shared.inbox.told.push(Told::Failed { key: *key, status: Status(status) });
}

/// A peer wants to connect.
///
/// # Safety
/// Called by UCX alone, with what it was given for the listener.
unsafe extern "C" fn asked(handle: sys::ucp_conn_request_h, asking: *mut c_void) {
    // SAFETY: from `listen`; it lives until the listener is destroyed.
    let Asking { shared, place } = unsafe { &*asking.cast::<Asking>() };
    // SAFETY: from `new`; the engine makes no reference to it while UCX runs.
    let shared = unsafe { &mut **shared };
    shared.inbox.told.push(Told::Asked(Request { listener: *place, handle }));
}

/// An address as the kernel has it.
enum SocketName {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
}

impl SocketName {
    fn of(at: SocketAddr) -> Self {
        match at {
            SocketAddr::V4(at) => Self::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: at.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(*at.ip()).to_be() },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(at) => Self::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: at.port().to_be(),
                sin6_flowinfo: at.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: at.ip().octets() },
                sin6_scope_id: at.scope_id(),
            }),
        }
    }

    /// As UCX wants it, as long as this lives.
    fn as_ucx(&self) -> sys::ucs_sock_addr_t {
        let (addr, bytes): (*const c_void, usize) = match self {
            Self::V4(name) => (std::ptr::from_ref(name).cast(), size_of_val(name)),
            Self::V6(name) => (std::ptr::from_ref(name).cast(), size_of_val(name)),
        };
        sys::ucs_sock_addr_t { addr: addr.cast(), addrlen: bytes as sys::socklen_t }
    }
}

/// What an address of the kernel's is, if it is one of IP.
///
/// # Safety
/// It is null, or what its family says.
pub(super) unsafe fn address_at(at: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: the caller promises it.
    let family = unsafe { at.as_ref() }?.sa_family;
    match i32::from(family) {
        libc::AF_INET => {
            // SAFETY: of that family, by the caller; it may lie anywhere.
            let found = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(found.sin_addr.s_addr));
            Some((ip, u16::from_be(found.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: of that family, by the caller; it may lie anywhere.
            let found = unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(found.sin6_addr.s6_addr);
            Some((ip, u16::from_be(found.sin6_port)).into())
        }
        _ => None,
    }
}

/// Makes a context with these settings, names without `UCX_`.
pub(super) fn make_context(
    settings: &[(&CStr, &CStr)],
) -> Result<sys::ucp_context_h, (Status, String)> {
    let mut config = null_mut();
    // SAFETY: no prefix and no file: UCX' own.
    let status = unsafe { sys::ucp_config_read(null(), null(), &mut config) };
    Status::check(status).map_err(|status| (status, "its settings".to_owned()))?;
    let set = settings.iter().try_for_each(|(name, value)| {
        // SAFETY: a configuration, and texts that end.
        let status = unsafe { sys::ucp_config_modify(config, name.as_ptr(), value.as_ptr()) };
        Status::check(status).map_err(|status| (status, format!("its setting {name:?}")))
    });
    let mut context = null_mut();
    let made = set.and_then(|()| {
        let params = sys::ucp_params_t {
            field_mask: u64::from(sys::ucp_params_field_UCP_PARAM_FIELD_FEATURES),
            features: u64::from(
                sys::ucp_feature_UCP_FEATURE_AM | sys::ucp_feature_UCP_FEATURE_WAKEUP,
            ),
            ..Default::default()
        };
        // SAFETY: the parameters say which of them count, the configuration is one.
        let status = unsafe {
            sys::ucp_init_version(
                sys::UCP_API_MAJOR,
                sys::UCP_API_MINOR,
                &raw const params,
                config,
                &mut context,
            )
        };
        Status::check(status).map_err(|status| (status, "its context".to_owned()))
    });
    // SAFETY: the configuration from above, which the context has copied.
    unsafe { sys::ucp_config_release(config) };
    made.map(|()| context)
}
